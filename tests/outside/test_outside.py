"""A new objective and a new policy, from another package, need no change of this one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import load_policy, save_policy
from tests.algos.problems import NVEC, OBSERVATION_SIZE, TINY, random_buffer
from tests.algos.runs import CrashError, crash_at
from tests.subprocesses import ROOT

FOLDER = Path(__file__).parent


def make(name: str) -> Any:
    if name == "objective":
        from spin_d3rlpy import SPIN, PretrainingConfig
        from tests.outside.good_bc import SPINGoodBC

        pretraining = PretrainingConfig(batch_size=32, max_updates=3)
        return SPINGoodBC(batch_size=19, policy=SPIN(TINY, pretraining))
    from tests.outside.linear import Linear, LinearIQL

    return LinearIQL(batch_size=19, policy=Linear(scale=2.0))


def fit(algo: Any, folder: Path | None = None, **settings: Any) -> Any:
    return algo.fit(
        random_buffer(),
        n_steps=9,
        n_steps_per_epoch=4,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
        checkpoint_dir=folder,
        resume=True,
        checkpoint_interval=2,
        **settings,
    )


@pytest.mark.parametrize("name", ["objective", "policy"])
def test_it_is_trained_saved_loaded_and_resumed(name: str, tmp_path: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(7, OBSERVATION_SIZE)).astype(np.float32)
    d3rlpy.seed(1)
    algo = make(name)
    results = fit(algo)
    actions = algo.predict(observations)
    assert actions.shape == (7, len(NVEC))

    save_policy(algo, tmp_path / "policy.safetensors")
    algo.save(str(tmp_path / "policy.d3"))
    found: tuple[Any, ...] = (
        load_policy(tmp_path / "policy.safetensors"),
        d3rlpy.load_learnable(str(tmp_path / "policy.d3")),
    )
    for loaded in found:
        assert type(loaded) is type(algo)
        assert np.array_equal(loaded.predict(observations), actions)

    d3rlpy.seed(1)
    with pytest.raises(CrashError):
        fit(make(name), tmp_path / "run", callback=crash_at(7))
    d3rlpy.seed(99)
    resumed = make(name)
    again = fit(resumed, tmp_path / "run")
    assert np.array_equal(resumed.predict(observations), actions)
    losses = [{k: v for k, v in row.items() if "loss" in k} for _, row in results]
    assert [{k: v for k, v in row.items() if "loss" in k} for _, row in again] == losses


def test_new_objectives_and_policies_compose_with_others() -> None:
    from spin_d3rlpy import SAINT
    from tests.outside.good_bc import GoodBC, GoodBCConfig
    from tests.outside.linear import Linear

    buffer = random_buffer()
    composed = GoodBC(policy=SAINT(TINY)), GoodBCConfig(policy=Linear(scale=2.0)).create()
    algos: tuple[Any, ...] = composed
    for algo in algos:
        assert type(algo) is GoodBC
        algo.build_with_dataset(buffer)
        assert algo.predict(np.zeros((2, OBSERVATION_SIZE), np.float32)).shape == (2, len(NVEC))


def test_a_field_of_the_policy_among_the_objectives_is_refused() -> None:
    from tests.outside.linear import LinearIQL

    with pytest.raises(TypeError, match=r"scale is a field of the policy: pass policy=Linear"):
        LinearIQL(scale=2.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("file", ["good_bc.py", "linear.py"])
def test_contributing_shows_exactly_this(file: str) -> None:
    code = (FOLDER / file).read_text()
    assert len(code.splitlines()) <= 50
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    assert code in shown
