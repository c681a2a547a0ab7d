from __future__ import annotations

from typing import Any

import pytest
import torch

import spin_d3rlpy
from spin_d3rlpy import fast
from spin_d3rlpy.asm import TransformerConfig
from spin_d3rlpy.fast import transformer
from tests.algos.problems import NVEC, new_algorithm, random_buffer, tiny_fields
from tests.subprocesses import run_python

ASK = "from spin_d3rlpy import fast; print(fast.is_on())"


def test_is_on_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fast.is_on()
    with fast.plain():
        assert not fast.is_on()
    assert fast.is_on()
    monkeypatch.setenv("SPIN_D3RLPY_PLAIN", "1")
    assert run_python(ASK).split()[-1] == "False"


def test_nothing_fast_is_called_in_plain_updates_nor_exported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    algo = new_algorithm(spin_d3rlpy.SPINIQL, nvec=NVEC, **tiny_fields(spin_d3rlpy.SPINIQL))
    algo.build_with_dataset(random_buffer())
    batch = random_buffer().sample_transition_batch(5)

    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(transformer, "forward", refuse)
    monkeypatch.setattr(fast, "sum_of_outputs", refuse)
    monkeypatch.setattr("spin_d3rlpy.fast.dropout.dropout", refuse)
    algo.save_policy(str(tmp_path / "policy.pt"))
    with fast.plain():
        algo.update(batch)
    with pytest.raises(AssertionError):
        algo.update(batch)


@pytest.mark.parametrize("policy", ["SPIN", "SAINT", "Factored", "Autoregressive"])
def test_plain_updates_are_the_same(policy: str) -> None:
    algo_class: Any = getattr(spin_d3rlpy, f"{policy}IQL")
    losses = []
    for plainly in (False, True):
        fields: dict[str, Any] = tiny_fields(algo_class)
        if policy in ("SPIN", "SAINT"):
            fields["policy"].transformer = TransformerConfig(
                width=16, n_blocks=2, n_heads=2, head_hidden=11, dropout=0.0, attention_dropout=0.0
            )
        torch.manual_seed(0)
        algo = new_algorithm(algo_class, nvec=NVEC, **fields)
        algo.build_with_dataset(random_buffer())
        torch.manual_seed(1)
        batches = [random_buffer().sample_transition_batch(50) for _ in range(4)]
        if plainly:
            with fast.plain():
                losses.append([algo.update(batch) for batch in batches])
        else:
            losses.append([algo.update(batch) for batch in batches])
    for found, expected in zip(*losses, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
