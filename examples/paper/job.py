"""Jobs as data: pre-train an ASM, train and evaluate an algorithm or a linear critic, probe an ASM.

A job is a folder: `job.json`, `run/` (see `spin_d3rlpy.runs.training`), `result.json` when done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # lists of experiments need no torch
    from spin_d3rlpy.evaluation.metrics import ActionMode

RESULT = "result.json"
RUN = "run"
ERROR = "error.txt"
LOG = "log.txt"


@dataclasses.dataclass(frozen=True)
class Job:
    """One piece of work; equal jobs are done once."""

    kind: Literal["pretrain", "train", "linear", "probe"]
    dataset: str  # name
    size: int | None = None  # its transitions; the published size if None
    seed: int = 0  # of networks and mini-batches
    device: str = "cpu:0"
    algorithm: str | None = None  # of a training: class in `spin_d3rlpy.algos`
    # Config fields, nested ones as dictionaries; of a pre-training `transformer`, `pretraining`.
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    n_steps: int = 0
    n_steps_per_epoch: int = 0
    episodes: int = 10  # per evaluation
    final_episodes: int = 0  # of one more evaluation of the trained policy, whose returns count
    mode: ActionMode = "sample"  # evaluated actions
    recipe: str = "published"  # for fields not in `fields`
    seconds: float | None = None  # CPU time, pre-training included, instead of `n_steps`
    clock: Literal["cpu", "ops"] = "cpu"  # of `seconds`: real ones, or nominal ones of work
    spent: float = 0.0  # of `seconds`, by the pre-training in `asm`
    labeled: float = 1.0  # share of the episodes, drawn by `seed`, that are trained on
    reward: str | None = None  # name in `spin_envs.rewards`, instead of the dataset's rewards
    asm: Job | None = None  # the job that pre-trains the ASM of a training or probe
    asm_epoch: int | None = None  # epoch of the ASM; the last one if None, 0 is untrained

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        asm = content["asm"]
        return cls(**{**content, "asm": None if asm is None else cls.from_json(asm)})

    @property
    def name(self) -> str:
        """Name of its folder: a readable summary and a hash of all fields."""
        identity = json.dumps(dataclasses.asdict(self), sort_keys=True).encode()
        what = self.algorithm or self.kind
        dataset = self.dataset.removeprefix("spin/").removesuffix("-v0").replace("/", "-")
        return f"{what}_{dataset}_s{self.seed}_{hashlib.sha256(identity).hexdigest()[:10]}"
