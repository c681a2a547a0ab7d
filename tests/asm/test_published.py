"""Checkpoints in the published layout, against a forward pass written for that layout."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spin_d3rlpy import SPINIQL, SPINEncoderFactory, load_published_asm, save_asm
from spin_d3rlpy.asm import ActionStructureModel, load_asm
from spin_d3rlpy.errors import InvalidCheckpointError
from tests.algos.problems import OBSERVATION_SIZE, random_buffer

NVEC = [3, 5, 2]
D, M, BLOCKS, HEADS, HIDDEN, FFN = 12, 2, 2, 3, 7, 36
Weights = dict[str, torch.Tensor]


def linear(weights: Weights, name: str, out: int, into: int) -> None:
    weights[f"{name}.weight"] = torch.randn(out, into) / into**0.5
    weights[f"{name}.bias"] = torch.randn(out) * 0.3


def published_weights() -> Weights:
    torch.manual_seed(3)
    w: Weights = {}
    linear(w, "core_transformer.state_encoder.0", 2 * D, OBSERVATION_SIZE)
    linear(w, "core_transformer.state_encoder.2", M * D, 2 * D)
    for i, m in enumerate(NVEC):
        w[f"core_transformer.sub_action_value_embeddings.{i}.weight"] = torch.randn(m + 1, D)
        linear(w, f"prediction_heads.{i}.0", HIDDEN, D)
        linear(w, f"prediction_heads.{i}.3", m, HIDDEN)
    for b in range(BLOCKS):
        name = f"core_transformer.transformer_blocks.{b}.mab"
        for norm in ("ln_q", "ln_kv", "ffn_ln"):
            w[f"{name}.{norm}.weight"] = 1 + 0.3 * torch.randn(D)
            w[f"{name}.{norm}.bias"] = 0.3 * torch.randn(D)
        for layer in ("fc_q", "fc_k", "fc_v", "out_proj"):
            linear(w, f"{name}.{layer}", D, D)
        linear(w, f"{name}.ffn.0", FFN, D)
        linear(w, f"{name}.ffn.3", D, FFN)
    return w


def gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def published_logits(
    weights: Weights, observation: np.ndarray, action: list[int]
) -> list[np.ndarray]:
    """One row's logits by slot, in float64 NumPy, token by token and head by head."""
    w = {k: v.double().numpy() for k, v in weights.items()}

    def affine(name: str, x: np.ndarray) -> np.ndarray:
        return np.asarray(w[f"{name}.weight"] @ x + w[f"{name}.bias"])

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return np.asarray(scaled * w[f"{name}.weight"] + w[f"{name}.bias"])

    core = "core_transformer"
    state = affine(f"{core}.state_encoder.2", gelu(affine(f"{core}.state_encoder.0", observation)))
    tokens = [state[i * D : (i + 1) * D] for i in range(M)]
    tokens += [w[f"{core}.sub_action_value_embeddings.{i}.weight"][a] for i, a in enumerate(action)]
    for b in range(BLOCKS):
        name = f"{core}.transformer_blocks.{b}.mab"
        q = [affine(f"{name}.fc_q", norm(f"{name}.ln_q", t)) for t in tokens]
        k = [affine(f"{name}.fc_k", norm(f"{name}.ln_kv", t)) for t in tokens]
        v = [affine(f"{name}.fc_v", norm(f"{name}.ln_kv", t)) for t in tokens]
        following = []
        for i, token in enumerate(tokens):
            mixed = np.zeros(D)
            for h in range(HEADS):
                part = slice(h * D // HEADS, (h + 1) * D // HEADS)
                scores = np.array([q[i][part] @ other[part] for other in k])
                p = np.exp(scores / math.sqrt(D / HEADS))
                p /= p.sum()
                mixed[part] = sum(p[j] * v[j][part] for j in range(len(tokens)))
            x = token + affine(f"{name}.out_proj", mixed)
            hidden = gelu(affine(f"{name}.ffn.0", norm(f"{name}.ffn_ln", x)))
            following.append(x + affine(f"{name}.ffn.3", hidden))
        tokens = following
    return [
        affine(f"prediction_heads.{i}.3", gelu(affine(f"prediction_heads.{i}.0", tokens[M + i])))
        for i in range(len(NVEC))
    ]


def write(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    content = {"model_state_dict": published_weights(), "epoch": 30, "loss": 0.5}
    return write(tmp_path / "published.pt", content)


def load(path: Path) -> ActionStructureModel:
    return load_published_asm(path, n_heads=HEADS)


def test_outputs_equal_the_published_forward_pass(checkpoint: Path) -> None:
    asm = load(checkpoint)
    assert asm.nvec == NVEC
    observations = torch.randn(5, OBSERVATION_SIZE)
    tokens = torch.tensor([[2, 4, 1], [0, 0, 0], [3, 5, 2], [1, 5, 0], [3, 2, 2]])  # masks too
    with torch.no_grad():
        logits = asm(observations, tokens)
    for row in range(5):
        expected = published_logits(
            published_weights(), observations[row].double().numpy(), tokens[row].tolist()
        )
        np.testing.assert_allclose(logits[row].numpy(), np.concatenate(expected), atol=1e-5)


def test_an_imported_model_is_saved_and_used_like_any_other(
    checkpoint: Path, tmp_path: Path
) -> None:
    asm = load(checkpoint)
    save_asm(asm, tmp_path / "asm.safetensors")
    again = load_asm(tmp_path / "asm.safetensors")
    algo = SPINIQL(asm=again, actor_encoder_factory=SPINEncoderFactory())
    algo.build_with_dataset(random_buffer())
    assert algo.is_pretrained
    assert algo.impl is not None
    found = algo.impl.policy.state_dict()
    assert torch.equal(
        found["features.trunk.blocks.1.ffn.4.weight"],
        asm.trunk.state_dict()["blocks.1.ffn.4.weight"],
    )


def without(key: str) -> Weights:
    weights = published_weights()
    del weights[key]
    return weights


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "under 'model_state_dict'"),
        ({"weights": {}}, "under 'model_state_dict'"),
        ({"model_state_dict": without("prediction_heads.1.3.bias")}, "prediction_heads.1.3.bias"),
        (
            {"model_state_dict": {**published_weights(), "value_head.weight": torch.ones(1)}},
            "no place for: value_head.weight",
        ),
        (
            {
                "model_state_dict": {
                    **published_weights(),
                    "core_transformer.state_encoder.0.weight": torch.ones(5, OBSERVATION_SIZE),
                }
            },
            "not those of a published ASM",
        ),
    ],
)
def test_other_files_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpointError, match=message):
        load(write(tmp_path / "other.pt", content))


class Attack:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_code_in_a_file_is_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "bad.pt", {"model_state_dict": Attack()})
    with pytest.raises(InvalidCheckpointError, match="without executing code"):
        load(path)
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Attack(), protocol=2))
    with pytest.raises(InvalidCheckpointError, match="without executing code"):
        load(tmp_path / "pickle.pt")
    assert "executed" not in capsys.readouterr().out


def test_missing_and_truncated_files(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No checkpoint at"):
        load(tmp_path / "none.pt")
    (tmp_path / "half.pt").write_bytes(checkpoint.read_bytes()[:2000])
    with pytest.raises(InvalidCheckpointError, match="torch file"):
        load(tmp_path / "half.pt")
