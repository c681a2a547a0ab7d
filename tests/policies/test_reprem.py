from __future__ import annotations

import numpy as np
import pytest
import torch

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.fast.precision import Precision
from spin_d3rlpy.policies.reprem import (
    Gate,
    RePreMConfig,
    RePreMModel,
    RePreMPretrainingConfig,
    contrastive_loss,
    masked_contrastive_loss,
    pretrain_reprem,
    sample_windows,
)
from spin_d3rlpy.training.loop import Run

NVEC = [3, 2]
SMALL = RePreMConfig(width=16, n_blocks=2, n_heads=2, window=4, dropout=0.0)


def test_the_gate_is_the_one_of_gated_transformers() -> None:
    torch.manual_seed(0)
    gate = Gate(3).double()
    x, y = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    wr, wz, wg = gate.of_update.weight.chunk(3)
    br, bz, bg = gate.of_update.bias.chunk(3)
    ur, uz = gate.of_stream.weight.chunk(2)
    r = torch.sigmoid(y @ wr.T + br + x @ ur.T)
    z = torch.sigmoid(y @ wz.T + bz + x @ uz.T)
    h = torch.tanh(y @ wg.T + bg + (r * x) @ gate.of_reset.weight.T)
    torch.testing.assert_close(gate(x, y), (1 - z) * x + z * h)
    assert bz.mean() < -1.0  # near the identity at the start
    assert br.mean() > -1.0


def buffer(lengths: list[int]) -> DeviceReplayBuffer:
    """Observation = (episode, step), action = step mod 3 and mod 2."""
    rows = [(e, t) for e, n in enumerate(lengths) for t in range(n + 1)]
    steps = np.array([t for n in lengths for t in range(n)])
    n = len(steps)
    return DeviceReplayBuffer(
        StackedEpisodes(
            observations=np.array(rows, dtype=np.float32),
            actions=np.stack([steps % 3, steps % 2], 1).astype(np.int8),
            rewards=np.zeros(n, np.float32),
            terminals=np.zeros(n, np.float32),
            lengths=lengths,
            nvec=NVEC,
        )
    )


def test_windows_are_consecutive_steps_of_one_episode() -> None:
    torch.manual_seed(0)
    source = buffer([5, 1, 9])
    windows = sample_windows(source, 500, 4)
    episode, step = windows.observations[..., 0], windows.observations[..., 1]
    assert (episode == episode[:, :1]).all()
    expected = step[:, :1] + torch.arange(4)
    length = torch.tensor([5, 1, 9])[episode[:, 0].long()][:, None]
    assert torch.equal(windows.valid, expected < length)
    assert torch.equal(step[windows.valid], expected[windows.valid])
    assert torch.equal(windows.actions[..., 0], step.long() % 3)
    assert torch.equal(windows.actions[..., 1], step.long() % 2)
    starts = {(int(e), int(t)) for e, t in zip(episode[:, 0], step[:, 0], strict=True)}
    assert len(starts) == 15  # every transition begins one


def test_hidden_tokens_and_those_past_the_end_do_not_influence_predictions() -> None:
    torch.manual_seed(0)
    model = RePreMModel(2, NVEC, SMALL).eval()
    observations, actions = torch.randn(3, 4, 2), torch.randint(2, (3, 4, 2))
    hidden = torch.zeros(3, 4, 2, dtype=torch.bool)
    hidden[:, 1, 0] = hidden[:, 2, 1] = True
    valid = torch.tensor([[True, True, True, False]]).expand(3, -1)

    def predict(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = model(model.embed(x, a), hidden, valid)[:, :3]
        return result

    before = predict(observations, actions)
    x, a = observations.clone(), actions.clone()
    x[:, 1] += 1.0
    a[:, 2] = 1 - a[:, 2]
    x[:, 3] += 1.0
    torch.testing.assert_close(predict(x, a), before)
    x[:, 0] += 1.0
    assert not torch.allclose(predict(x, a), before)


def test_what_is_hidden_is_told_from_its_kind_in_the_whole_batch() -> None:
    torch.manual_seed(0)
    predicted, targets = torch.randn(3, 4, 2, 5), torch.randn(3, 4, 2, 5)
    hidden = torch.rand(3, 4, 2) < 0.5
    loss, accuracy = contrastive_loss(predicted, targets, hidden, 0.3)
    losses, hits = [], []
    for kind in (0, 1):
        places = hidden[:, :, kind].nonzero().tolist()
        for b, w in places:
            u = predicted[b, w, kind] / predicted[b, w, kind].norm()
            logits = torch.stack(
                [u @ targets[i, j, kind] / targets[i, j, kind].norm() / 0.3 for i, j in places]
            )
            own = places.index([b, w])
            losses.append(-logits.log_softmax(0)[own])
            hits.append(float(logits.argmax() == own))
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert accuracy.item() == pytest.approx(np.mean(hits))


def test_learns_to_predict_states_from_their_neighbours() -> None:
    torch.manual_seed(0)
    model = RePreMModel(2, NVEC, SMALL)
    config = RePreMPretrainingConfig(
        batch_size=64, learning_rate=3e-3, n_epochs=999, max_updates=150, log_interval=50
    )
    records = pretrain_reprem(model, buffer([20] * 10), config, Run(show_progress=False))
    assert [r["step"] for r in records] == [50, 100, 150]
    assert records[-1]["samples"] == 150 * 64 * 4
    assert records[-1]["loss"] < 0.8 * records[0]["loss"]
    assert records[-1]["accuracy"] > 2 * records[0]["accuracy"]
    assert not model.training


def test_pretraining_in_bfloat16_learns_the_same() -> None:
    """The gates mix what is in bfloat16 into a stream that is not."""
    losses = []
    precisions: list[Precision] = ["float32", "bfloat16"]
    for precision in precisions:
        torch.manual_seed(0)
        config = RePreMPretrainingConfig(batch_size=32, max_updates=5, log_interval=5)
        config.precision = precision
        [record] = pretrain_reprem(
            RePreMModel(2, NVEC, SMALL), buffer([30, 40]), config, Run(show_progress=False)
        )
        losses.append(record["loss"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_budget_counts_rows() -> None:
    config = RePreMPretrainingConfig(n_epochs=2, batch_size=10)
    assert config.n_updates(n_transitions=1001, window=4) == 2 * 26


@pytest.mark.parametrize("fields", [{"n_heads": 3}, {"window": 1}])
def test_impossible_sizes_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        RePreMConfig(**fields)


def test_the_loss_of_fixed_shapes_is_the_loss() -> None:
    torch.manual_seed(0)
    predicted, targets = torch.randn(5, 4, 2, 6, requires_grad=True), torch.randn(5, 4, 2, 6)
    hidden = torch.rand(5, 4, 2) < 0.4
    assert hidden.any(0).any(0).all()
    results = []
    for function in (contrastive_loss, masked_contrastive_loss):
        loss, accuracy = function(predicted, targets, hidden, 0.1)
        results.append((loss, accuracy, torch.autograd.grad(loss, predicted)))
    torch.testing.assert_close(results[1], results[0])
