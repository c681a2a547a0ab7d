"""The same seed gives the same numbers, also in another process; what threads change is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from spin_d3rlpy import SPINIQL, AutoregressiveBCQ, DecQNIQL, FactoredIQL
from tests.algos import runs
from tests.algos.runs import fit, make, outcome, seed
from tests.measure.kills import digest
from tests.subprocesses import run_processes

T = TypeVar("T")


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_threads(n: int, compute: Callable[[], T]) -> T:
    with threads(n):
        return compute()


def trained(algo_class: Any) -> dict[str, Any]:
    seed(1)
    algo = make(algo_class)
    return outcome(algo, fit(algo, None))


@pytest.mark.parametrize(
    ("algo_class", "n_threads"),
    [(SPINIQL, 1), (FactoredIQL, 1), (AutoregressiveBCQ, 1), (DecQNIQL, 1), (FactoredIQL, 2)],
)
def test_the_same_seed_gives_the_same_numbers(algo_class: Any, n_threads: int) -> None:
    first, second = (with_threads(n_threads, lambda: trained(algo_class)) for _ in range(2))
    assert digest(first) == digest(second)


def test_another_seed_gives_others() -> None:
    first = trained(FactoredIQL)
    seed(2)
    algo = make(FactoredIQL)
    assert digest(first) != digest(outcome(algo, fit(algo, None)))


@pytest.mark.slow
def test_other_processes_get_the_same_numbers(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(2)]
    for folder in folders:
        folder.mkdir()
    run_processes(runs.run, [(folder, "none", 0, True) for folder in folders])
    first, second = (digest(torch.load(folder / "outcome.pt")) for folder in folders)
    assert first == second


def test_threads_change_numbers_by_rounding_only() -> None:
    one, two = (with_threads(n, lambda: trained(FactoredIQL)) for n in (1, 2))
    assert one["next"] == two["next"]  # random numbers are the same
    for (_, first), (_, second) in zip(one["results"], two["results"], strict=True):
        for name, value in first.items():
            assert second[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_torch_still_adds_layer_norms_gradient_by_thread() -> None:
    """Why runs with different numbers of threads are not bit-for-bit the same."""

    def gradient() -> torch.Tensor:
        norm = torch.nn.LayerNorm(64)
        x = torch.randn(2048, 64, generator=torch.Generator().manual_seed(0))
        norm(x).square().sum().backward()
        assert norm.weight.grad is not None
        return norm.weight.grad

    one, two = (with_threads(n, gradient) for n in (1, 2))
    assert not torch.equal(one, two)
    torch.testing.assert_close(one, two, rtol=1e-5, atol=0.0)
