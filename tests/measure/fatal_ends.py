"""How well a sum of log-odds tells CoNE's pits from 10,000 logged steps, and what it would return.

    python -m tests.measure.fatal_ends --out fatal_ends.csv

Next places are exact here, and rewards of places that are no pits are known, so that nothing but
the log-odds decides: each step goes to the place that is nearest to the goal, less what its risk
costs. With known places the same, but those from which the log went on have no risk, and those of
its fatal ends are left out. The log-likelihood is that of pits in 30,000 new steps of the log's own
policy; a constant rate's is next to it, and that of who knows which places are inside, and how many
of these are pits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from spin_d3rlpy import load_dataset
from spin_d3rlpy.critics.fatal_ends import FatalEnds
from spin_d3rlpy.critics.return_bins import AVERSION
from spin_d3rlpy.files.results import write_csv
from spin_d3rlpy.search.places import KnownPlaces, Places
from tests.measure.brave_cells import SHARES, Cell, dataset_of

NEW_STEPS, MOST_STEPS = 30_000, 100
RANDOM_SHARE = 0.9  # of the log's steps
PLACEMENTS = 20
MOVES = np.array([*itertools.product((-1, 0, 1), repeat=8)])


def new_steps(rules: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns places that steps of the log's policy lead to, and which of them are pits."""
    places, x = [], np.zeros(8, np.int64)
    for _ in range(NEW_STEPS):
        is_random = rng.random() < RANDOM_SHARE
        move = rng.choice(MOVES) if is_random else np.ones(8, np.int64)
        x = np.clip(x + move, 0, 4)
        places.append(x)
        if rules.outcomes(x[None])[1][0]:  # a pit, or the goal
            x = np.zeros(8, np.int64)
    return np.array(places), is_pit(rules, np.array(places))


def is_pit(rules: Any, places: NDArray[Any]) -> NDArray[Any]:
    """Returns which places `(n, 8)` are pits."""
    pits: NDArray[Any] = rules.outcomes(places)[0] == rules.pit_reward
    return pits


def measure(cell: Cell) -> dict[str, Any]:
    """Returns a row of the results."""
    buffer, env = load_dataset(dataset_of(cell), progress=False)
    rules: Any = env.unwrapped._rules  # type: ignore[attr-defined]
    x = buffer.observations_at(buffer.observation_index).numpy().astype(np.int64)
    reached = rules.move(x, buffer.actions.numpy().astype(np.int64))
    codes, ends = Places(8), FatalEnds(72)
    codes.fit(torch.from_numpy(reached).float())
    is_fatal = torch.from_numpy(is_pit(rules, reached))
    ends.fit(codes(torch.from_numpy(reached).float()), is_fatal, torch.ones(len(reached)))

    def risk(places: NDArray[Any]) -> NDArray[Any]:
        risks: NDArray[Any] = ends(codes(torch.from_numpy(places).float())).sigmoid().numpy()
        return risks

    def loss(risks: NDArray[Any], falls: NDArray[Any]) -> float:
        risks = risks.astype(np.float64).clip(1e-9, 1.0 - 1e-9)
        return float(-np.where(falls, np.log(risks), np.log1p(-risks)).mean())

    def keys(places: NDArray[Any]) -> torch.Tensor:
        return codes.keys(codes(torch.from_numpy(places).float()))

    fatal, survived = KnownPlaces(), KnownPlaces()
    fatal.remember(keys(reached[is_fatal]))
    survived.remember(keys(reached[~is_fatal]))

    def known_risk(places: NDArray[Any]) -> NDArray[Any]:
        risks, of = risk(places), keys(places)
        risks[fatal(of)] = np.inf
        risks[survived(of)] = 0.0
        return risks

    def returned(risk_of: Callable[[NDArray[Any]], NDArray[Any]]) -> float:
        x, total = np.zeros((1, 8), np.int64), 0.0
        for _ in range(MOST_STEPS):
            after = np.clip(x + MOVES, 0, 4)
            costs = AVERSION * risk_of(after) * -rules.pit_reward
            x = after[[(-np.linalg.norm(after - 4, axis=1) - costs).argmax()]]
            (reward,), (has_ended,) = rules.outcomes(x)
            total += reward
            if has_ended:
                break
        return round(total, 2)

    places, falls = new_steps(rules, np.random.default_rng(99))
    inside = ((places > 0) & (places < 4)).all(1)
    returns = returned(risk), returned(known_risk)
    env.close()
    return {
        "pits_percent": cell[0],
        "placement": cell[1],
        "logged_pits": int(is_fatal.sum()),
        "loss_of_log_odds": round(loss(risk(places), falls), 5),
        "loss_of_a_constant": round(loss(np.full(len(falls), is_fatal.numpy().mean()), falls), 5),
        "loss_of_who_knows_the_inside": round(
            loss(np.where(inside, falls[inside].mean(), 0.0), falls), 5
        ),
        "return": returns[0],
        "return_with_known_places": returns[1],
    }


def main(out: Annotated[Path, typer.Option(help="The file of results.")]) -> None:
    """Measures all cells."""
    torch.set_num_threads(1)
    write_csv(out, [measure(cell) for cell in itertools.product(SHARES, range(PLACEMENTS))])


if __name__ == "__main__":
    typer.run(main)
