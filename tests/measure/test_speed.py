"""The speed benchmark: its counts, its plain formulation, and ratios that must not get lost."""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import spin_d3rlpy
from spin_d3rlpy.asm import ActionStructureModel, TransformerConfig, masked_action_loss
from spin_d3rlpy.asm.objectives.masked import mask_actions
from spin_d3rlpy.policies import AutoregressiveConfig, SlotPolicy
from spin_d3rlpy.policies.features import QueryFeatures
from spin_d3rlpy.training.threads import one_thread
from tests.measure import floors, speed
from tests.measure.floors import Problem
from tests.measure.speed import CHEETAH, DOG, Rates, best_seconds

RATES = Rates(float32=1e11, bfloat16=4e11)


def multiply_adds(call: Any) -> float:
    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops()) / 2


@pytest.mark.parametrize("problem", [CHEETAH, DOG], ids=lambda p: p.name)
def test_floor_of_pretraining_is_what_a_step_multiplies(problem: Problem) -> None:
    """Up to what is done once for all rows (folding norms, projecting the table)."""
    config = TransformerConfig(dropout=0.0, attention_dropout=0.0)
    asm = ActionStructureModel(problem.observation_size, problem.nvec, config)
    observations = torch.randn(128, problem.observation_size)
    actions = torch.zeros(128, problem.n_slots, dtype=torch.long)
    masked = mask_actions(actions, asm.mask_ids)
    counted = multiply_adds(
        lambda: masked_action_loss(asm, observations, actions, masked).loss.backward()
    )
    floor = floors.pretraining_step(problem, config, 128, 0.15)
    assert floor == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    ("frozen", "passes"), [(False, floors.TRAINED), (True, floors.PASSED_THROUGH)]
)
def test_floor_of_slot_policies_is_what_a_step_multiplies(frozen: bool, passes: int) -> None:
    config = TransformerConfig()
    features = QueryFeatures(CHEETAH.observation_size, 6, config, frozen)
    policy = SlotPolicy(CHEETAH.nvec, features, config).eval()
    observations = torch.randn(256, CHEETAH.observation_size)
    actions = torch.zeros(256, 6, dtype=torch.long)
    counted = multiply_adds(lambda: policy.log_prob(observations, actions).mean().backward())
    floor = floors.slot_policy_step(CHEETAH, config, 256, passes)
    assert floor == pytest.approx(counted, rel=0.03)


def test_floor_of_factored_iql_is_what_a_step_multiplies() -> None:
    """But for gradients of the first layers' inputs, which are not needed."""
    algo = spin_d3rlpy.FactoredIQL(nvec=list(DOG.nvec))
    algo.create_impl((DOG.observation_size,), 0)
    batch = speed._fixed_batch(DOG, "cpu:0")
    algo._update_without_sync(batch)  # the first one also measures the processor
    counted = multiply_adds(lambda: algo._update_without_sync(batch))
    floor = floors.iql_critics_step(DOG, 256) + floors.factored_policy_step(DOG, 256)
    unneeded = 256 * 4 * DOG.observation_size * 256  # two Q functions, V and the policy
    assert floor - unneeded == pytest.approx(counted, rel=0.001)


def test_floor_of_the_autoregressive_policy() -> None:
    sizes = AutoregressiveConfig(state_width=5, action_width=3, lstm_width=7, n_layers=2)
    slot = 4 * 7 * (8 + 7) + 4 * 7 * 14
    expected = 3 * 10 * (17 * 5 + 6 * slot + 7 * 18)
    assert floors.autoregressive_policy_step(CHEETAH, sizes, 10) == expected


def test_variants_are_timed_in_turns_and_the_fastest_turn_counts() -> None:
    calls: list[str] = []

    def step(name: str, seconds: float) -> None:
        calls.append(name)
        time.sleep(seconds)

    best = best_seconds(
        {"a": lambda: step("a", 0.02), "b": lambda: step("b", 0.04)}, turns=2, at_least=0.0
    )
    assert 0.02 <= best["a"] < 0.04 <= best["b"] < 0.08
    assert calls == ["a", "a", "b", "b", "a", "b", "a", "b"]


def test_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the time of launching kernels is measured, not the kernels'."""
    waits: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("wait"))
    best_seconds({"a": lambda: None}, turns=1, at_least=0.0, device="cuda:0")
    assert len(waits) == 2
    devices: list[str] = []

    def measured(steps: Any, turns: int, device: str = "cpu:0") -> dict[str, float]:
        devices.append(device)
        return dict.fromkeys(steps, 1.0)

    monkeypatch.setattr(speed, "best_seconds", measured)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: torch.zeros(8192, 512))
    speed.Rates.measure("cuda:0")  # the floor is of the device that updates run on
    assert devices == ["cuda:0"] * 2


def cpu_seconds(step: speed.Step) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pretraining", "SPINIQL"])
def test_training_stays_faster_than_the_plain_formulation(what: str) -> None:
    """Median of neighbors' ratios, in CPU time of one thread, which busy machines disturb least."""
    if what == "pretraining":
        steps = speed._pretraining_steps(CHEETAH, TransformerConfig(width=64), "cpu:0", plain=True)
    else:
        algo = speed._built(what, CHEETAH, "cpu:0", precision="float32")
        update = partial(algo._update_without_sync, speed._fixed_batch(CHEETAH, "cpu:0"))
        steps = {"plain": speed.plainly(update), "float32": update}
    with one_thread():
        rounds = [(cpu_seconds(steps["plain"]), cpu_seconds(steps["float32"])) for _ in range(8)]
    assert statistics.median(plain / fast for plain, fast in rounds[1:]) > 1.2, rounds


@pytest.mark.slow
def test_cached_features_stay_several_times_faster() -> None:
    """Fifteen times where nothing else runs."""
    row = speed.cached_spin_row(CHEETAH, RATES, turns=2)
    assert float(row["float32_ratio"]) > 5


@pytest.mark.slow
def test_sampling_stays_faster_than_from_a_stock_buffer() -> None:
    """More than twenty times where nothing else runs."""
    assert float(speed.sampling_row(turns=2)["ratio"]) > 5


@pytest.mark.slow
def test_the_whole_benchmark_runs(tmp_path: Path) -> None:
    speed.run_speed_benchmark(tmp_path, quick=True)
    assert json.loads((tmp_path / "machine.json").read_text())["machine"]["cpus"] >= 1
    lines = (tmp_path / "training.csv").read_text().splitlines()
    assert [line.split(",")[0].strip('"') for line in lines[1:]] == [
        "ASM",  # followed by a comma within quotes
        "SPINIQL",
        "SAINTIQL",
        "FactoredIQL",
        "AutoregressiveIQL",
        "SPINIQL",
    ]
