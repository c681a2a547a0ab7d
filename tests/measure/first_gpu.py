"""The first minutes on a GPU: what has never run on one, most telling first.

    python -m tests.measure.first_gpu --minutes 30

In this order: steps a second and memory; the tuned recipe by the clock, with its decisions; how
busy the GPU is; the tests that need CUDA; updates on the CPU against updates on the GPU; recorded
updates against those that are not; SPIN-IQL of the published sizes on cheetah-run medium-expert
for the minutes that are left. Each part is written when it is done, and a command that is given
again resumes there. Needed on the machine: this repository with its test dependencies, a CUDA
build of torch, and for the last part the dataset or minutes of all cores to build it (`spin-d3rlpy
data build spin/cheetah-run-b3/medium-expert-v0` elsewhere; copy the folder and set
MINARI_DATASETS_PATH to it). Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import d3rlpy
import torch
import typer
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.optimizers import AdamFactory

from spin_d3rlpy import (
    SPINIDQL,
    DecQN,
    FactoredIQL,
    LockstepEvaluator,
    algos,
    load_dataset,
    nvec,
)
from spin_d3rlpy.fast import Dropout
from spin_d3rlpy.files.results import write_csv, write_json
from spin_d3rlpy.policies import base as policies
from spin_d3rlpy.runs.machine import describe_machine
from spin_d3rlpy.runs.settings import train_settings
from spin_d3rlpy.runs.training import run_training
from spin_d3rlpy.training.graphs import WARM_UP_STEPS
from tests.algos.problems import (
    ALGORITHMS,
    has_field,
    new_algorithm,
    optimizers,
    random_buffer,
    tiny_fields,
)
from tests.measure import speed

DATASET = "spin/cheetah-run-b3/medium-expert-v0"
PROJECT = Path(__file__).parents[2]
BY_THE_CLOCK = ("spin/dispatch-n20/medium-expert-v0", "spin/cone-d8-p50/mixed-v0")
RESERVE = 0.4  # share of the time that the last part has at least
Row = dict[str, Any]


@dataclasses.dataclass
class Session:
    """One run of all parts, perhaps in several processes.

    Args:
        out: folder of results.
        device: what is measured.
        seconds: of all parts together.
        is_tiny: little of everything, to see that it runs.
        size: transitions of the dataset.
    """

    out: Path
    device: str
    seconds: float
    is_tiny: bool = False
    size: int | None = None

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        state = self.out / "seconds.json"
        self._before = json.loads(state.read_text())["spent"] if state.exists() else 0.0
        self._started = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds so far, those of earlier processes included."""
        return float(self._before + time.monotonic() - self._started)

    def left(self, share: float = 1.0) -> float:
        """Seconds that are left of a share of all."""
        return max(0.0, share * self.seconds - self.spent)

    def log(self, text: str) -> None:
        """Prints a line and keeps it."""
        print(text, flush=True)
        with (self.out / "log.txt").open("a") as f:
            f.write(f"{self.spent:7.1f} s  {text}\n")

    def do(self, name: str, part: Callable[[Session], Any]) -> Any:
        """Does a part unless it is done, and keeps its result; an error is one, too."""
        path = self.out / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())
        self.log(f"{name} ...")
        began = time.monotonic()
        try:
            result = part(self)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        write_json(path, {"seconds": time.monotonic() - began, "result": result})
        if isinstance(result, list):
            write_csv(self.out / f"{name}.csv", result)
        write_json(self.out / "seconds.json", {"spent": self.spent})
        self.log(f"{name}: {_summary(result)}")
        return result

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


def _summary(result: Any) -> str:
    if isinstance(result, list):
        failed = [row for row in result if row.get("ok") is False]
        return f"{len(result)} rows" + (f", not as expected: {failed}" if failed else "")
    return str(result)


def cuda_tests(session: Session) -> Row:
    """What `pytest` says of the tests that are skipped without CUDA."""
    chosen = ["--version"] if session.is_tiny else []
    plugins = ["-n", "auto", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins]
    with (session.out / "tests.log").open("w") as log:
        code = subprocess.run(
            [*command, *chosen, "tests/algos/test_cuda.py"],
            cwd=PROJECT,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=max(60.0, session.left(1 - RESERVE)),
        ).returncode
    last = (session.out / "tests.log").read_text().strip().splitlines()[-1:]
    return {"ok": code == 0, "exit_status": code, "summary": " ".join(last)}


def _algorithms(session: Session) -> list[Any]:
    return [FactoredIQL, DecQN] if session.is_tiny else ALGORITHMS


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
    """Devices draw other random numbers: no dropout, and noise of policies is the host's."""
    gumbel = nvec.gumbel_noise

    def of_host(like: torch.Tensor, generator: Any = None) -> torch.Tensor:
        return gumbel(torch.empty(like.shape), generator).to(like.device)

    with (
        mock.patch.object(Dropout, "rate", 0.0),
        mock.patch.object(policies, "gumbel_noise", of_host),
    ):
        yield


def _built(algo_class: Any, device: str, **fields: Any) -> Any:
    d3rlpy.seed(1)
    # With the usual epsilon, gradients that are zero but for rounding become whole steps.
    common = {**tiny_fields(algo_class), **optimizers(algo_class, AdamFactory(eps=1e-3))}
    algo = new_algorithm(algo_class, device=device, batch_size=19, **{**common, **fields})
    algo.build_with_dataset(random_buffer())
    return algo


def _parts(algo: Any) -> dict[str, torch.Tensor]:
    networks = algo.impl.modules.get_torch_modules().items()
    return {
        f"{n}.{k}": v.detach().cpu().clone()
        for n, network in networks
        for k, v in network.state_dict().items()
    }


def _difference(algo_class: Any, one: Any, other: Any, tolerance: float) -> Row:
    found, expected = _parts(one), _parts(other)
    largest, where = max(
        (float((found[key].double() - value.double()).abs().max()), key)
        for key, value in expected.items()
        if value.numel()
    )
    return {
        "algorithm": algo_class.__name__,
        "ok": largest <= tolerance,
        "largest_difference": largest,
        "of": where,
        "tolerance": tolerance,
    }


def equality(session: Session) -> list[Row]:
    """Three updates in float32 on the CPU and on the device, from the same weights and batches."""
    rows = []
    for algo_class in _algorithms(session):
        algos = [_built(algo_class, device) for device in ("cpu:0", session.device)]
        for name, network in algos[1].impl.modules.get_torch_modules().items():
            network.load_state_dict(getattr(algos[0].impl.modules, name).state_dict())
        with _same_draws():
            for seed in range(3):
                torch.manual_seed(seed)
                batch = random_buffer(seed=seed).transitions(torch.randint(200, (19,)))
                for algo in algos:
                    torch.manual_seed(seed)
                    algo.gradient_step(_moved(batch, algo._device))
        rows.append(_difference(algo_class, algos[0], algos[1], 1e-3))
    return rows


def _moved(batch: Any, device: str) -> Any:
    tensors = {k: v.to(device) for k, v in vars(batch).items() if isinstance(v, torch.Tensor)}
    return dataclasses.replace(batch, **tensors)


def graphs(session: Session) -> list[Row]:
    """Twelve steps of `fit`, recorded and not."""
    rows = []
    for algo_class in _algorithms(session):
        algos = []
        for compile_graph in ("auto", False):
            fields: dict[str, Any] = {"compile_graph": compile_graph}
            if has_field(algo_class, "pretraining"):
                short = tiny_fields(algo_class)["pretraining"]
                fields["pretraining"] = dataclasses.replace(short, max_updates=8)
            algo = _built(algo_class, session.device, **fields)
            quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory()}
            algo.fit(random_buffer(), n_steps=12, show_progress=False, **quiet)
            algos.append(algo)
        rows.append(_difference(algo_class, algos[0], algos[1], 1e-3))
    return rows


def steps_per_second(session: Session) -> list[Row]:
    """Every row of the speed benchmark, with the memory that it takes at most."""
    on_gpu, turns = session.device.startswith("cuda"), 1 if session.is_tiny else 3
    tiny = speed.Rates(1e11, 1e11)  # measuring them would take seconds
    rates = tiny if session.is_tiny else speed.Rates.measure(session.device, turns)
    rows: list[Row] = []
    for problem in (speed.CHEETAH,) if session.is_tiny else (speed.CHEETAH, speed.DOG):
        args = (problem, rates, session.device, turns)
        calls: list[Callable[[], Row]] = [
            partial(speed.pretraining_row, problem, rates, None, session.device, turns),
            *(partial(speed.iql_row, name, *args) for name in speed.IQL_ALGORITHMS),
            partial(speed.cached_spin_row, *args),
        ]
        for call in [calls[3], calls[-1]] if session.is_tiny else calls:  # F-IQL, cached SPIN-IQL
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(session.device)
            row = call()
            for precision in ("float32", "bfloat16"):
                row[f"{precision}_steps_per_second"] = round(1e3 / float(row[f"{precision}_ms"]))
            if on_gpu:
                row["megabytes"] = torch.cuda.max_memory_allocated(session.device) >> 20
            rows.append(row)
            if session.left(1 - RESERVE) == 0.0:
                return rows
    return rows


RECORDED = ("SPINIQL", "SAINTIQL", "FactoredIQL", "AutoregressiveIQL", "SPINIDQL", "DecQNIQL")


def recorded_steps(session: Session) -> list[Row]:
    """Milliseconds of an update, drawing its batch included, recorded as a CUDA graph and not."""
    rows: list[Row] = []
    for problem in (speed.CHEETAH,) if session.is_tiny else (speed.CHEETAH, speed.DOG):
        buffer = speed.random_buffer(problem, 4).to(session.device)
        for name in RECORDED[2:3] if session.is_tiny else RECORDED:
            steps: dict[str, Callable[[], object]] = {}
            for precision in ("float32", "bfloat16"):
                for how, graph in (("launched", False), ("recorded", True)):
                    fields: dict[str, Any] = {"precision": precision, "compile_graph": graph}
                    algo = new_algorithm(getattr(algos, name), session.device, **fields)
                    algo.build_with_dataset(buffer)
                    steps[f"{precision}_{how}_ms"] = partial(speed._sampled_update, algo, buffer)
            for step in steps.values():
                for _ in range(WARM_UP_STEPS):
                    step()
            seconds = speed.best_seconds(steps, 3, device=session.device)
            milliseconds = {key: f"{1e3 * value:.3g}" for key, value in seconds.items()}
            rows.append({"algorithm": name, "problem": problem.name, **milliseconds})
    return rows


def by_the_clock(session: Session) -> list[Row]:
    """The tuned recipe for seconds of the clock: steps, returns, decisions; recorded and not."""
    rows: list[Row] = []
    for dataset in ("spin/dispatch-n10/medium-v0",) if session.is_tiny else BY_THE_CLOCK:
        size = 1000 if session.is_tiny else 20_000 if "dispatch" in dataset else None
        for graph in ("auto", False):
            buffer, env = load_dataset(dataset, size=size)
            d3rlpy.seed(0)
            algo = SPINIDQL(recipe="tuned", compile_graph=graph, device=session.device)
            began = time.monotonic()
            seconds = 0.5 if session.is_tiny else 20.0
            quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory()}
            algo.fit(buffer, seconds=seconds, show_progress=False, **quiet)
            fitted = time.monotonic() - began
            with closing(LockstepEvaluator(env, 1 if session.is_tiny else 20)) as evaluator:
                returns = evaluator.returns(algo)
            rows.append(
                {
                    "dataset": dataset,
                    "compile_graph": graph,
                    "steps": algo.grad_step,
                    "fit_seconds": round(fitted, 1),
                    "return": round(float(returns.mean()), 3),
                    **_decision_ms(algo, buffer, session),
                    "trust": str(algo.trust),
                }
            )
            env.close()
    return rows


def _decision_ms(algo: SPINIDQL, buffer: Any, session: Session) -> Row:
    """Milliseconds of `predict`, the median of ten calls, by the number of states."""
    found: Row = {}
    for n in (1, 64) if session.is_tiny else (1, 64, 1024):
        states = buffer.observations_at(buffer.observation_index[:n]).cpu().numpy()
        taken = []
        for _ in range(10):
            began = time.monotonic()
            algo.predict(states)
            session.synchronize()
            taken.append(1e3 * (time.monotonic() - began))
        found[f"ms_of_{n}"] = round(statistics.median(taken), 2)
    return found


def utilization(session: Session) -> Row:
    """How busy the device is during updates of SPIN-IQL of the published size."""
    buffer = speed.random_buffer(speed.CHEETAH, 4).to(session.device)
    fields = {"precision": "auto", "compile_graph": "auto"}
    algo = speed._built("SPINIQL", speed.CHEETAH, session.device, **fields)
    query = "--query-gpu=utilization.gpu,memory.used,power.draw"
    sampler = None
    if session.device.startswith("cuda") and shutil.which("nvidia-smi"):
        sampler = subprocess.Popen(
            ["nvidia-smi", query, "--format=csv", "-lms", "500"],
            stdout=(session.out / "utilization.csv").open("w"),
        )
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < (0.2 if session.is_tiny else 20.0):
        algo.sample_and_update(buffer)
        steps += 1
        if steps % 50 == 0:
            session.synchronize()
    session.synchronize()
    seconds = time.monotonic() - began
    if sampler is not None:
        sampler.terminate()
        sampler.wait()
    return {"steps_per_second": steps / seconds, "sampled": sampler is not None}


def training(session: Session) -> Row:
    """SPIN-IQL of the published sizes for the time that is left; evaluations come on top."""
    values: dict[str, Any] = {
        "dataset": DATASET,
        "algorithm": "SPINIQL",
        "fields": {"precision": "auto", "compile_graph": "auto"},
        "seconds": session.left(),
        "size": session.size,
        "device": session.device,
        "n_epochs": 5,
        "mode": "sample",
    }
    if session.is_tiny:
        fields = {"transformer": {"width": 8, "n_blocks": 1, "head_hidden": 4}, "batch_size": 16}
        tiny = {"dataset": "spin/maze-a3/random-v0", "seconds": 2.0, "n_epochs": 1, "episodes": 1}
        values |= {**tiny, "fields": fields}
    folder = session.out / "spin"
    settings = folder / "asked.json"  # the seconds of the first attempt are those of the run
    if settings.exists():
        values = json.loads(settings.read_text())
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(settings, values)
    result = run_training(folder / "run", train_settings(values, "first_gpu"), False)
    shutil.copy(folder / "run" / "curve.csv", session.out / "spin_curve.csv")
    return result


PARTS = {
    "speed": steps_per_second,
    "recorded": recorded_steps,
    "by_the_clock": by_the_clock,
    "utilization": utilization,
    "tests": cuda_tests,
    "equality": equality,
    "graphs": graphs,
    "training": training,
}


def run_first_gpu(session: Session) -> None:
    """Does all parts that are not done."""
    about = describe_machine()
    if session.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(session.device)
        about["gpu"] = {"name": properties.name, "bytes": properties.total_memory}
        about["versions"]["cuda"] = torch.version.cuda
    write_json(session.out / "machine.json", {**about, "device": session.device})
    for name, part in PARTS.items():
        session.do(name, part)


def main(
    out: Annotated[
        Path | None, typer.Option(help="Folder for results; examples/results/gpu if none is named.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Of all parts together.")] = 30.0,
    device: Annotated[str, typer.Option(help="cuda:0, or another one.")] = "cuda:0",
    size: Annotated[int | None, typer.Option(help="Transitions of the dataset.")] = None,
    tiny: Annotated[bool, typer.Option(help="Little of everything, also on a CPU.")] = False,
) -> None:
    """Test, compare and measure on a GPU, in minutes; given again, it resumes."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no GPU here; --tiny --device cpu:0 tries the command.")
    folder = out or (Path(tempfile.mkdtemp()) if tiny else PROJECT / "examples/results/gpu")
    run_first_gpu(Session(folder, device, 60.0 * minutes, tiny, size))


if __name__ == "__main__":
    typer.run(main)
