"""Every algorithm with rules, masks, layouts, cached features, resumption and files at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

import spin_d3rlpy
from spin_d3rlpy import load_policy, save_policy
from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.masks import pack
from spin_d3rlpy.policies.reprem import RePreMPretrainingConfig
from spin_envs import ActionLayout
from tests.algos.conformance import networks, same
from tests.algos.problems import OBSERVATION_SIZE, new_algorithm, random_buffer, small_networks
from tests.exported_files import exported_actions

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics")
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
NVEC = [4, 4, 4]
STATES = np.random.default_rng(3).normal(size=(40, OBSERVATION_SIZE)).astype(np.float32)
# Slot i is described by column i, all choices by the last four.
LAYOUT = ActionLayout(
    shared_choices=True,
    slot_columns=((0,), (1,), (2,)),
    choice_columns=((3,), (4,), (5,), (6,)),
    compared=((0, 0),),
)
ALGORITHMS = [
    algo
    for name in spin_d3rlpy.__all__
    if isinstance(algo := getattr(spin_d3rlpy, name), type)
    and issubclass(algo, MultiDiscreteAlgo)
    and "type_name" in vars(algo.config_class)
]
# Every objective, policy and way of caching; their other pairs are among the slow tests.
QUICK = {
    *("SPINIQL", "SPINBC", "SPINIDQL", "SPINDistillAWAC", "RePreMAWAC", "SAINTIDQL"),
    *("FactoredIDQL", "AutoregressiveBCQ", "DecQNBCQ"),
}
QUICK_WITHOUT_LAYOUT = {"SPINIQL", "SPINIDQL", "AutoregressiveBCQ", "DecQNBCQ"}


def masked_buffer() -> DeviceReplayBuffer:
    """Random data whose actions keep the rule and the masks."""
    buffer = random_buffer(NVEC)
    rng = np.random.default_rng(0)
    actions = np.stack([rng.permutation(4)[:3] for _ in buffer.actions])
    buffer.actions.copy_(torch.from_numpy(actions))
    # Three choices of four, so that the rule always leaves one.
    masks = np.arange(4) != rng.integers(4, size=(len(buffer.observations), 3, 1))
    rows = buffer.observation_index.numpy()
    masks[rows[:, None], np.arange(3), actions] = True
    bits = torch.from_numpy(pack(masks, NVEC))
    buffer.stored = dataclasses.replace(buffer.stored, masks=bits)
    return buffer


def small_tuned(algo_class: Any) -> dict[str, Any]:
    """The tuned recipe's kinds of networks and stages, small."""
    fields = small_networks(algo_class, 16)
    known = vars(getattr(algo_class(recipe="tuned").config, "policy", SimpleNamespace()))
    if "pretraining" in known:
        masking = known["pretraining"]
        fields["pretraining"] = (
            RePreMPretrainingConfig(batch_size=8, max_updates=2, log_interval=1)
            if isinstance(masking, RePreMPretrainingConfig)
            else PretrainingConfig(masking="any_order", batch_size=32, max_updates=2)
        )
    if "distillation" in known:
        fields["distillation"] = DistillationConfig(
            n_updates=2, batch_size=32, validation_interval=1
        )
    small: dict[str, Any] = {"batch_size": 16, "imitation_batch_size": 16, "n_action_samples": 3}
    # Nothing depends on the run's length, so that a shorter one can be continued.
    small |= {"lr_schedule": "constant", "lr_warmup": 0.0, "monte_carlo_share": 0.0}
    config = algo_class.config_class()
    return {**fields, **{k: v for k, v in small.items() if hasattr(config, k)}}


def distinct(actions: Any) -> bool:
    return all(len(set(action)) == len(action) for action in np.asarray(actions).tolist())


def with_speed(algo_class: Any, layout: ActionLayout | None) -> Any:
    """Returns a case, marked slow unless it is one of the quick ones."""
    is_quick = algo_class.__name__ in (QUICK if layout else QUICK_WITHOUT_LAYOUT)
    name = f"{algo_class.__name__}-{'layout' if layout else 'flat'}"
    return pytest.param(algo_class, layout, id=name, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(
    ("algo_class", "layout"),
    [with_speed(a, layout) for a in ALGORITHMS for layout in (None, LAYOUT)],
)
def test_features_of_the_package_hold_together(
    algo_class: Any, layout: ActionLayout | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    buffer = masked_buffer()

    def make() -> Any:
        torch.manual_seed(0)
        fields = {**small_tuned(algo_class), "layout": layout, "rules": [all_different(4)]}
        return new_algorithm(algo_class, recipe="tuned", **fields)

    whole = make()
    whole.fit(buffer, n_steps=4, **QUIET)
    algo = make()
    algo.fit(buffer, n_steps=2, checkpoint_dir=tmp_path / "run", **QUIET)
    algo = make()
    algo.fit(buffer, n_steps=4, checkpoint_dir=tmp_path / "run", resume=True, **QUIET)

    assert same(networks(whole), networks(algo))

    masks = np.ones((len(STATES), 3, 4), bool)
    masks[::2, 0, 0] = masks[1::2, 2, 3] = False
    greedy = algo.predict(STATES)
    for actions in (greedy, algo.sample_action(STATES)):
        assert distinct(actions)
    for sample in (False, True):
        kept = algo.predict_masked(STATES, masks, sample)
        assert distinct(kept)
        assert np.take_along_axis(masks, kept[..., None], 2).all()
    masked = algo.predict_masked(STATES, masks)

    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert np.array_equal(loaded.predict(STATES), greedy)
    assert np.array_equal(loaded.predict_masked(STATES, masks), masked)

    path = str(tmp_path / "policy.pt")
    algo.save_policy(path, masks=True)
    found = exported_actions(path, observations=STATES, masks=masks)
    assert (found == masked).all(1).mean() > 0.95
    assert distinct(found)
