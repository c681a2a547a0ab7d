"""From a log with several rewards to a curve of what can be had (`spin-d3rlpy tradeoff`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import d3rlpy
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy.algos.idql import IDQL
from spin_d3rlpy.algos.named import SPINIDQL
from spin_d3rlpy.algos.saving import save_policy
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.named_rewards import check_weights
from spin_d3rlpy.data.loader import open_dataset
from spin_d3rlpy.errors import InvalidDatasetError, listed, require_fields, shown
from spin_d3rlpy.evaluation.halves import HalvesEstimate, Interval, require_episodes
from spin_d3rlpy.evaluation.limits import Limit, limits_of
from spin_d3rlpy.evaluation.trade_off import (
    TradeOff,
    TradeOffPoint,
    measure_point,
    trace,
    weightings,
)
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.files.results import read_json, write_csv, write_json
from spin_d3rlpy.runs.trade_off_page import write_page
from spin_d3rlpy.training.budget import Clock

SETTINGS = "settings.json"
CHECKPOINTS = "checkpoints"
POINTS = "points.json"
CURVE = "curve.csv"
PAGE = "tradeoff.html"
POLICY = "policy.safetensors"


@dataclasses.dataclass(frozen=True)
class TradeOffSettings:
    """How a curve is made.

    Args:
        log: name or path of the dataset.
        directions: of each reward, above 0 if more of it is better, below 0 if less is.
        limits: texts such as `"complaints <= today"`.
        seconds: of training, by `clock`.
        clock: see `fit`.
        held_out_share: of the episodes, by which the policies are estimated.
        n: weightings.
        gamma: discount of the returns that are estimated.
        n_steps: gradient steps of each evaluation.
        level: of the intervals.
        seed: of the split, networks, mini-batches and draws.
    """

    log: str
    directions: dict[str, float]
    limits: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 60.0
    clock: Clock = "wall"
    held_out_share: float = 0.3
    n: int = 9
    gamma: float = 1.0
    n_steps: int = 1_000
    level: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        require_fields(
            self,
            directions=(len(self.directions) >= 2, "of two rewards or more"),
            seconds=(self.seconds > 0.0, "above 0"),
            held_out_share=(0.0 < self.held_out_share < 1.0, "between 0 and 1"),
            n=(self.n >= 2, "of at least 2"),
            n_steps=(self.n_steps >= 1, "of at least 1"),
            gamma=(0.0 < self.gamma <= 1.0, "above 0 and up to 1"),
            level=(0.0 < self.level < 1.0, "between 0 and 1"),
        )


def parse_directions(text: str) -> dict[str, float]:
    """Reads `"revenue,-complaints"`: a reward of which less is better has a minus in front.

    Raises:
        ValueError: fewer than two names, an empty one, or one twice.
    """
    directions: dict[str, float] = {}
    for part in text.split(","):
        name = part.strip().removeprefix("-").removeprefix("+").strip()
        if not name or name in directions:
            break
        directions[name] = -1.0 if part.strip().startswith("-") else 1.0
    else:
        if len(directions) >= 2:
            return directions
    raise ValueError(
        "Expected two rewards or more, those of which less is better with a minus in front, such "
        f"as revenue,-complaints; got {shown(text)}."
    )


def run_trade_off(
    settings: TradeOffSettings,
    out: Path,
    *,
    device: str = "cpu:0",
    trust: bool = False,
    show_progress: bool = True,
) -> dict[str, Any]:
    """Trains one algorithm, estimates the policies of its weightings, and writes a page.

    The folder gets `tradeoff.html`, `curve.csv` and `policy.safetensors`, the delivered policy. A
    run that was interrupted continues when it is given again.

    Args:
        settings: of the curve.
        out: the folder.
        device: as in d3rlpy.
        trust: see `load_dataset`.
        show_progress: draw progress bars.

    Returns:
        The `finding` in a sentence, the files, whether the limits are kept, and the curve's rows.

    Raises:
        DatasetNotFoundError: see `load_dataset`.
        InvalidDatasetError: see `load_dataset`; or the log has not these rewards.
        ValueError: the folder holds a curve with other settings, or a limit is none.
        FolderInUseError: another process is using the folder.
    """
    limits = limits_of([Limit.parse(text) for text in settings.limits], list(settings.directions))
    stored = open_dataset(settings.log, progress=show_progress, trust=trust)
    data = _log(DeviceReplayBuffer.from_minari(stored), settings)
    learned, held_out = data.split(settings.held_out_share, settings.seed)
    require_episodes(held_out)
    out.mkdir(parents=True, exist_ok=True)
    with exclusive_folder(out, wait=False):
        _begin(out, settings)
        algo = _train(learned, settings, out, device, show_progress)
        points = _Points(out / POINTS)

        def measure(weights: dict[str, float]) -> TradeOffPoint:
            known = points.get(weights)
            if known is not None:
                return known
            point = measure_point(
                algo,
                held_out,
                weights,
                settings.gamma,
                settings.n_steps,
                settings.level,
                settings.seed,
                device,
            )
            points.add(point)
            return point

        curve = trace(
            measure, algo, held_out, settings.directions, limits, settings.n, show_progress
        )
        rows = curve_rows(curve)
        write_csv(out / CURVE, rows)
        write_page(curve, out / PAGE, settings.log, held_out, settings.gamma, settings.level)
        files = {"page": str(out / PAGE), "curve": str(out / CURVE)}
        if curve.delivered is not None:
            chosen = algo.with_weights(curve.points[curve.delivered].weights, held_out)
            save_policy(chosen, out / POLICY)
            files["policy"] = str(out / POLICY)
        else:
            (out / POLICY).unlink(missing_ok=True)
    return {
        "finding": str(curve),
        **files,
        "limits": settings.limits,
        "is_kept": curve.delivered is not None if limits else None,
        "rows": rows,
    }


def _log(data: DeviceReplayBuffer, settings: TradeOffSettings) -> DeviceReplayBuffer:
    """Returns the log, weighed by the directions in units of what returns differ by."""
    if data.named_rewards is None:
        raise InvalidDatasetError(
            f"Expected a log with several rewards, {settings.log} has one. Make it by `spin-d3rlpy "
            "data from-table ... --reward revenue=<column> --reward complaints=<column>` with a "
            "--weight of each."
        )
    names = data.named_rewards.names
    missing = [name for name in settings.directions if name not in names]
    if missing:
        raise InvalidDatasetError(
            f"Expected rewards of {settings.log}, which are {listed(map(shown, names))}; got "
            f"{shown(missing[0])}."
        )
    check_weights(settings.directions, names)
    middle = weightings(data, settings.directions, 3)[1]
    return data.with_weights(middle)


def _begin(out: Path, settings: TradeOffSettings) -> None:
    wanted = dataclasses.asdict(settings)
    path = out / SETTINGS
    if path.exists() and ((out / CHECKPOINTS).exists() or (out / POINTS).exists()):
        saved = read_json(path)
        other = [name for name, value in wanted.items() if saved.get(name) != value]
        if other:
            raise ValueError(
                f"{out} holds a curve with {other[0]}={shown(saved.get(other[0]))}, expected "
                f"{shown(wanted[other[0]])}. Choose another folder, or delete this one."
            )
    write_json(path, wanted)


def _train(
    learned: DeviceReplayBuffer,
    settings: TradeOffSettings,
    out: Path,
    device: str,
    show_progress: bool,
) -> IDQL[Any]:
    d3rlpy.seed(settings.seed)
    algo = SPINIDQL(recipe="tuned", device=device)
    algo.fit(
        learned,
        seconds=settings.seconds,
        clock=settings.clock,
        checkpoint_dir=out / CHECKPOINTS,
        resume=True,
        logger_adapter=NoopAdapterFactory(),
        show_progress=show_progress,
    )
    return algo


def curve_rows(curve: TradeOff) -> list[dict[str, Any]]:
    """Returns a row of numbers for each point: weights, returns with intervals, what it is."""
    rows = []
    dominated = curve.dominated
    for i, point in enumerate(curve.points):
        row: dict[str, Any] = {f"weight of {k}": w for k, w in point.weights.items()}
        for name, estimate in point.estimates.items():
            row[name] = estimate.value.value
            row[f"{name}, low"], row[f"{name}, high"] = estimate.value.low, estimate.value.high
            row[f"{name}, the log's"] = estimate.logged.value
        row |= {
            "acts by": point.acts_by,
            "answered": point.is_answered,
            "dominated": dominated[i],
            "keeps the limits": curve.kept[i] if curve.limits else "",
            "delivered": i == curve.delivered,
        }
        rows.append(row)
    return rows


class _Points:
    """Points that were measured, in a file, so that none is measured twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = read_json(path)["points"] if path.exists() else []

    def get(self, weights: Mapping[str, float]) -> TradeOffPoint | None:
        for row in self._rows:
            if row["weights"] == weights:
                estimates = {name: _estimate(e) for name, e in row["estimates"].items()}
                return TradeOffPoint(row["weights"], estimates, row["acts_by"])
        return None

    def add(self, point: TradeOffPoint) -> None:
        self._rows.append(dataclasses.asdict(point))
        write_json(self._path, {"points": self._rows})


def _estimate(row: Mapping[str, Any]) -> HalvesEstimate:
    intervals = {name: Interval(**row[name]) for name in ("value", "gain", "logged")}
    return HalvesEstimate(**intervals, missed=row["missed"], tolerance=row["tolerance"])
