"""Datasets: names, building, loading and the device-resident replay buffer."""

from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights
from spin_d3rlpy.data.loader import as_device_buffer, load_dataset
from spin_d3rlpy.data.minari.builder import build_dataset
from spin_d3rlpy.data.minari.specs import DatasetPart, DatasetSpec, buildable_datasets, parse_name
from spin_d3rlpy.data.online import collect, create_replay_buffer
from spin_d3rlpy.data.relabel import relabel, with_rewards
from spin_d3rlpy.data.tables.from_table import from_table, save_dataset

__all__ = [
    "DatasetPart",
    "DatasetSpec",
    "DeviceReplayBuffer",
    "TrajectoryWeights",
    "as_device_buffer",
    "build_dataset",
    "buildable_datasets",
    "collect",
    "create_replay_buffer",
    "from_table",
    "load_dataset",
    "parse_name",
    "relabel",
    "save_dataset",
    "with_rewards",
]
