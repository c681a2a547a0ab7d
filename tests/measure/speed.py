"""Seconds per training step: this package compared with a plain formulation and with the floor.

Absolute times depend on the machine and on what else runs there. So the variants of a measurement
take turns within one process, the fastest of the turns counts, and what is reported are ratios:
to the plain formulation in float32 (`spin_d3rlpy.fast.plain`) and to the floor, the time that the
products alone would take at the rate that this machine reaches on large matrices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy import algos, fast
from spin_d3rlpy.asm import (
    ActionStructureModel,
    PretrainingConfig,
    TransformerConfig,
    pretrain,
)
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.fast.precision import Precision, autocast
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.policies import SPIN, AutoregressiveConfig
from spin_d3rlpy.policies.feature_cache import CachedFeatures
from spin_d3rlpy.runs.machine import describe_machine
from spin_d3rlpy.training.loop import Run
from spin_d3rlpy.training.threads import one_thread
from tests.measure import evaluation_speed, floors
from tests.measure.floors import Problem

CHEETAH = Problem("cheetah-run, 3 bins", 17, (3,) * 6)
DOG = Problem("dog-trot, 30 bins", 223, (30,) * 38)
BATCH_SIZE = 256
ASM_BATCH_SIZE = 1024
PRETRAINING_UPDATES = 2  # of one call
# (episodes, steps) of the random data that steps are measured on; contents do not matter.
EPISODES, LENGTH = 20, 1000

Row = dict[str, Any]
Step = Callable[[], object]


def best_seconds(
    steps: Mapping[str, Step], turns: int, at_least: float = 0.05, device: str = "cpu:0"
) -> dict[str, float]:
    """Times variants in turns and returns each one's fastest turn, in seconds per call.

    Args:
        steps: what to call, by name. Each is called once before it is timed.
        turns: number of turns.
        at_least: seconds that a turn of one variant lasts at least.
        device: what to wait for.
    """

    def seconds(step: Step, calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            step()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / calls

    calls = {}
    for name, step in steps.items():
        step()
        calls[name] = max(1, round(at_least / seconds(step, 1)))
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(turns):
        for name, step in steps.items():
            best[name] = min(best[name], seconds(step, calls[name]))
    return best


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the machine does at best.

    Args:
        float32: multiply-adds per second.
        bfloat16: multiply-adds per second.
    """

    float32: float
    bfloat16: float

    @staticmethod
    def measure(device: str, turns: int = 5) -> Rates:
        """Multiplies matrices of a Transformer's shape, by the library that updates use."""
        rates = {}
        for dtype in (torch.float32, torch.bfloat16):
            a = torch.randn(8192, 512, device=device, dtype=dtype)
            b = torch.randn(512, 512, device=device, dtype=dtype)
            with autocast(device, "float32"):
                product = {"product": partial(torch.matmul, a, b)}
                seconds = best_seconds(product, turns, device=device)["product"]
            rates[dtype] = a.numel() * b.shape[1] / seconds
        return Rates(rates[torch.float32], rates[torch.bfloat16])


def random_buffer(problem: Problem, episodes: int = EPISODES) -> DeviceReplayBuffer:
    """Random data of a problem's shapes."""
    return DeviceReplayBuffer.from_replay_buffer(
        random_stock_buffer(problem, episodes), problem.nvec
    )


def random_stock_buffer(problem: Problem, episodes: int = EPISODES) -> ReplayBuffer:
    """The same in d3rlpy's own buffer."""
    rng = np.random.default_rng(0)
    data = [
        Episode(
            rng.normal(size=(LENGTH, problem.observation_size)).astype(np.float32),
            rng.integers(problem.nvec, size=(LENGTH, problem.n_slots)),
            rng.normal(size=(LENGTH, 1)).astype(np.float32),
            terminated=False,
        )
        for _ in range(episodes)
    ]
    return ReplayBuffer(InfiniteBuffer(), episodes=data, action_size=max(problem.nvec))


def plainly(step: Step) -> Step:
    """The same step without what is there for speed, but for memory, which all variants share."""
    fast.keep_freed_memory()

    def plain_step() -> object:
        with fast.plain():
            return step()

    return plain_step


def _pretraining_steps(
    problem: Problem, config: TransformerConfig, device: str, plain: bool
) -> dict[str, Step]:
    buffer = random_buffer(problem).to(device)

    def updates(precision: Precision) -> Step:
        asm = ActionStructureModel(problem.observation_size, problem.nvec, config).to(device)
        settings = PretrainingConfig(
            batch_size=ASM_BATCH_SIZE, precision=precision, max_updates=PRETRAINING_UPDATES
        )
        return lambda: pretrain(asm, buffer, settings, Run(show_progress=False))

    steps = {"float32": updates("float32"), "bfloat16": updates("bfloat16")}
    return {"plain": plainly(updates("float32")), **steps} if plain else steps


def pretraining_row(
    problem: Problem,
    rates: Rates,
    config: TransformerConfig | None = None,
    device: str = "cpu:0",
    turns: int = 3,
    plain: bool = True,
) -> Row:
    """Milliseconds of one update of masked action modeling, sampling and masking included."""
    config = config or TransformerConfig()
    steps = _pretraining_steps(problem, config, device, plain)
    seconds = best_seconds(steps, turns, device=device)
    per_update = {name: s / PRETRAINING_UPDATES for name, s in seconds.items()}
    floor = floors.pretraining_step(problem, config, ASM_BATCH_SIZE, 0.15)
    return _row(f"ASM, width {config.width}", problem, per_update, floor, rates)


def _fixed_batch(problem: Problem, device: str, batch_size: int = BATCH_SIZE) -> TorchMiniBatch:
    return random_buffer(problem, 2).to(device).sample_transition_batch(batch_size)


def _built(name: str, problem: Problem, device: str, **fields: Any) -> Any:
    algo = getattr(algos, name)(device=device, nvec=list(problem.nvec), **fields)
    algo.create_impl((problem.observation_size,), 0)
    return algo


def iql_row(
    name: str,
    problem: Problem,
    rates: Rates,
    device: str = "cpu:0",
    turns: int = 3,
    batch_size: int = BATCH_SIZE,
    plain: bool = True,
) -> Row:
    """Milliseconds of one IQL update of `name` (such as `SPINIQL`) on a given batch."""
    batch = _fixed_batch(problem, device, batch_size)
    steps: dict[str, Step] = {}
    if plain:
        plain_algo = _built(name, problem, device, precision="float32")
        steps["plain"] = plainly(partial(plain_algo._update_without_sync, batch))
    for precision in ("float32", "bfloat16"):
        algo = _built(name, problem, device, precision=precision)
        steps[precision] = partial(algo._update_without_sync, batch)
    floor = policy_floor(name, problem, batch_size) + floors.iql_critics_step(problem, batch_size)
    return _row(name, problem, best_seconds(steps, turns, device=device), floor, rates)


def cached_spin_row(problem: Problem, rates: Rates, device: str = "cpu:0", turns: int = 3) -> Row:
    """The same for SPIN-IQL with fixed queries and cached features, sampling included."""
    plain_algo = _built("SPINIQL", problem, device, precision="float32")
    batch = _fixed_batch(problem, device)
    steps: dict[str, Step] = {"plain": plainly(partial(plain_algo._update_without_sync, batch))}
    buffer = random_buffer(problem).to(device)
    width = TransformerConfig().width
    features = torch.randn(len(buffer.observations), problem.n_slots, width).bfloat16().to(device)
    cached = CachedFeatures(buffer, features)
    for precision in ("float32", "bfloat16"):
        policy = SPIN(train_queries=False)
        algo = _built("SPINIQL", problem, device, precision=precision, policy=policy)
        steps[precision] = partial(_sampled_update, algo, cached)
    floor = floors.slot_policy_step(problem, TransformerConfig(), BATCH_SIZE, 0)
    floor += floors.iql_critics_step(problem, BATCH_SIZE)
    seconds = best_seconds(steps, turns, device=device)
    return _row("SPINIQL, cached features", problem, seconds, floor, rates)


def _sampled_update(algo: Any, buffer: DeviceReplayBuffer | CachedFeatures) -> None:
    algo.sample_and_update(buffer)  # which a recording does as one


def policy_floor(name: str, problem: Problem, batch_size: int) -> float:
    """Multiply-adds of the policy's share of an update."""
    if name.startswith("Factored"):
        return floors.factored_policy_step(problem, batch_size)
    if name.startswith("Autoregressive"):
        return floors.autoregressive_policy_step(problem, AutoregressiveConfig(), batch_size)
    passes = floors.TRAINED if name.startswith("SAINT") else floors.PASSED_THROUGH
    return floors.slot_policy_step(problem, TransformerConfig(), batch_size, passes)


def _row(
    what: str, problem: Problem, seconds: Mapping[str, float], floor: float, rates: Rates
) -> Row:
    def per_second(x: float) -> str:
        return f"{x:.3g}"

    plain = seconds.get("plain")
    floor_seconds = {
        "float32": floor / rates.float32,
        "bfloat16": floor / rates.bfloat16,
    }
    row: Row = {"step": what, "problem": problem.name}
    row["plain_ms"] = "" if plain is None else per_second(1e3 * plain)
    for name, lowest in floor_seconds.items():
        row[f"{name}_ms"] = per_second(1e3 * seconds[name])
        row[f"{name}_ratio"] = "" if plain is None else f"{plain / seconds[name]:.2f}"
        row[f"{name}_floor_ms"] = per_second(1e3 * lowest)
    return row


def fit_overhead_row(problem: Problem = CHEETAH, n_steps: int = 300, turns: int = 9) -> Row:
    """`fit` (sampling, updates, logging, progress) compared with bare updates on one batch."""
    buffer = random_buffer(problem)
    batch = buffer.sample_transition_batch(BATCH_SIZE)
    algo = _built("FactoredIQL", problem, "cpu:0")

    def fit() -> None:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            algo.fit(
                buffer, n_steps, n_steps, logger_adapter=NoopAdapterFactory(), show_progress=True
            )

    def updates() -> None:
        for _ in range(n_steps):
            algo._update_without_sync(batch)

    def sampled() -> None:
        for _ in range(n_steps):
            _sampled_update(algo, buffer)

    def seconds(call: Step) -> float:
        started = time.process_time()
        call()
        return time.process_time() - started

    # A few percent are less than what the machine varies by from minute to minute: neighbors in
    # time are compared, by the processor's time of one thread.
    with one_thread():
        updates()
        rounds = [(seconds(fit), seconds(updates), seconds(sampled)) for _ in range(turns)]
    return {
        "measurement": "fit of F-IQL over bare updates",
        "ratio": f"{statistics.median(f / u for f, u, _ in rounds):.3f}",
        "note": "over updates with sampling: "
        f"{statistics.median(f / s for f, _, s in rounds):.3f}; CPU time of one thread, medians",
    }


def sampling_row(problem: Problem = CHEETAH, turns: int = 5) -> Row:
    """A batch from a stock d3rlpy buffer, made into tensors, compared with one from ours."""
    ours, stock = random_buffer(problem), random_stock_buffer(problem)

    def from_stock() -> None:
        TorchMiniBatch.from_batch(stock.sample_transition_batch(BATCH_SIZE), 0.99, False, "cpu:0")

    seconds = best_seconds(
        {"stock": from_stock, "ours": lambda: ours.sample_transition_batch(BATCH_SIZE)}, turns
    )
    return {
        "measurement": "batch from d3rlpy's buffer over one from ours",
        "ratio": f"{seconds['stock'] / seconds['ours']:.1f}",
        "note": f"{1e3 * seconds['ours']:.3f} ms",
    }


def scaling_rows(turns: int = 3, precision: Precision = "auto") -> list[Row]:
    """Cost against bins (38 slots), slots (3 bins), transitions and batch size, SPIN-IQL."""
    rows: list[Row] = []

    def measure(axis: str, variants: Mapping[str, Step]) -> None:
        seconds = best_seconds(variants, turns)
        first = next(iter(seconds.values()))
        rows.extend(
            {"axis": axis, "value": value, "ms": f"{1e3 * s:.3g}", "ratio": f"{s / first:.2f}"}
            for value, s in seconds.items()
        )

    def update(problem: Problem, batch_size: int = BATCH_SIZE) -> Step:
        algo = _built("SPINIQL", problem, "cpu:0", precision=precision)
        batch = _fixed_batch(problem, "cpu:0", batch_size)
        return partial(algo._update_without_sync, batch)

    def sample(transitions: int) -> Step:
        buffer = random_buffer(CHEETAH, transitions // LENGTH)
        algo = _built("FactoredIQL", CHEETAH, "cpu:0", precision=precision)
        return partial(_sampled_update, algo, buffer)

    bins = (3, 10, 30, 100)
    measure("bins", {str(k): update(Problem("", 223, (k,) * 38)) for k in bins})
    measure("slots", {str(n): update(Problem("", 17, (3,) * n)) for n in (2, 6, 16, 38, 64)})
    measure("transitions, F-IQL with sampling", {str(n): sample(n) for n in (200_000, 2_000_000)})
    measure("batch size", {str(b): update(CHEETAH, b) for b in (64, 256, 1024)})
    return rows


IQL_ALGORITHMS = ("SPINIQL", "SAINTIQL", "FactoredIQL", "AutoregressiveIQL")
TWENTY_THOUSAND = 20_000


def time_to_many_updates_rows(rates: Rates, turns: int = 3) -> list[Row]:
    """Seconds to 20,000 pre-training updates on cheetah-run at widths 64, 128 and 256."""
    rows = []
    for width in (64, 128, 256):
        config = TransformerConfig(width=width)
        row = pretraining_row(CHEETAH, rates, config, turns=turns, plain=False)
        rows.append(
            {
                "width": width,
                "updates": TWENTY_THOUSAND,
                **{
                    f"{name}_seconds": round(TWENTY_THOUSAND * float(row[f"{name}_ms"]) / 1e3)
                    for name in ("float32", "bfloat16")
                },
            }
        )
    return rows


def run_speed_benchmark(
    folder: Path,
    quick: bool = False,
    device: str = "cpu:0",
    log: Callable[[str], None] = print,
) -> None:
    """Measures everything in one run; leaves one CSV file per table and `machine.json`.

    Args:
        folder: where they go; created if missing.
        quick: cheetah-run only and one turn, to see that everything runs.
        device: of training steps; everything else is measured on the CPU.
        log: gets tables as text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    turns = 1 if quick else 9
    rates = Rates.measure(device)
    tables: dict[str, Callable[[], list[Row]]] = {
        "training": lambda: _training_rows(rates, device, turns, quick),
        "loop": lambda: [sampling_row(turns=turns), fit_overhead_row(turns=3 * turns)],
        "evaluation": lambda: evaluation_speed.rows(min(turns, 3)),
    }
    if not quick:
        tables["twenty_thousand_updates"] = lambda: time_to_many_updates_rows(rates)
        tables["scaling"] = lambda: scaling_rows()
    for name, measure in tables.items():
        rows = measure()
        write_csv(folder / f"{name}.csv", rows)
        log(f"{name}\n{format_table(rows)}\n")
    about = {
        **describe_machine(),
        "device": device,
        "multiply_adds_per_second": dataclasses.asdict(rates),
    }
    (folder / "machine.json").write_text(json.dumps(about, indent=1) + "\n")


def _training_rows(rates: Rates, device: str, turns: int, quick: bool) -> list[Row]:
    rows = []
    for problem in (CHEETAH,) if quick else (CHEETAH, DOG):
        rows.append(pretraining_row(problem, rates, device=device, turns=turns))
        rows += [iql_row(name, problem, rates, device, turns) for name in IQL_ALGORITHMS]
        rows.append(cached_spin_row(problem, rates, device, turns))
    return rows


def main(
    out: Annotated[Path, typer.Option(help="Folder for tables.")] = Path("spin-speed"),
    quick: Annotated[
        bool, typer.Option(help="One problem, one turn: seconds, no figures.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu:0, cuda:0, ...")] = "cpu:0",
) -> None:
    """Time training steps compared with a plain formulation and with the machine's floor."""
    run_speed_benchmark(out, quick, device)


if __name__ == "__main__":
    typer.run(main)
