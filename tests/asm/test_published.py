"""Checkpoints in the published layout, against a forward pass written for that layout."""

from __future__ import annotations

import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from spin_d3rlpy import SPIN, SPINIQL, save_asm
from spin_d3rlpy.asm import ActionStructureModel, load_asm, load_published_asm
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


def published_content(**args: Any) -> dict[str, Any]:
    """What the published ASM.py saves at the end: its arguments as a dict, and the weights."""
    nvec = tuple(gymnasium.spaces.MultiDiscrete(NVEC).nvec)
    assert isinstance(nvec[0], np.int64)
    saved: dict[str, Any] = {
        "exp_name": "ASM_pretrain",
        "learning_rate": 4e-4,
        "warmup_steps": None,
        "num_heads": HEADS,
        "transformer_dropout_p": 0.25,
        "action_cardinalities": nvec,
        "mask_token_ids": list(nvec),
        **args,
    }
    return {"args": saved, "model_state_dict": published_weights(), "epoch": 99}


def as_saved_with_numpy_1(path: Path) -> Path:
    """The same file with the module's name that NumPy 1.26 writes."""
    renamed = path.with_name("numpy1.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(renamed, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith("data.pkl"):
                data = data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
                assert b"cnumpy.core.multiarray\nscalar\n" in data
            target.writestr(entry.filename, data)
    return renamed


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
    algo = SPINIQL(asm=again, policy=SPIN())
    algo.build_with_dataset(random_buffer())
    assert algo.is_pretrained
    assert algo.impl is not None
    found = algo.impl.policy.state_dict()
    assert torch.equal(
        found["features.trunk.blocks.1.ffn.4.weight"],
        asm.trunk.state_dict()["blocks.1.ffn.4.weight"],
    )


@pytest.mark.parametrize("numpy", [1, 2])
def test_a_file_as_the_published_code_writes_it_is_read(numpy: int, tmp_path: Path) -> None:
    path = write(tmp_path / "final.pt", published_content())
    asm = load_published_asm(as_saved_with_numpy_1(path) if numpy == 1 else path)
    sizes = asm.transformer.config
    assert (asm.nvec, sizes.n_heads) == (NVEC, HEADS)  # what its arguments say
    assert (sizes.dropout, sizes.attention_dropout) == (0.25, 0.25)
    # Nothing of this stays allowed.
    with pytest.raises(pickle.UnpicklingError, match="multiarray"):
        torch.load(path, weights_only=True)


def test_another_number_of_heads_than_the_file_says_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "final.pt", published_content(num_heads=6))
    assert load_published_asm(path).transformer.config.n_heads == 6
    with pytest.raises(InvalidCheckpointError, match="with 6 heads, and n_heads=3"):
        load(path)


HEAD = "prediction_heads.1.3"
KEYS, VALUES = (f"core_transformer.transformer_blocks.0.mab.fc_{part}.weight" for part in "kv")
TABLE = "core_transformer.sub_action_value_embeddings.0.weight"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({f"{HEAD}.weight": torch.ones(1, HIDDEN)}, r"shape \(1, 7\), expected \(5, 7\)"),
        ({f"{HEAD}.bias": torch.ones(1)}, r"shape \(1,\), expected \(5,\)"),
        ({KEYS: torch.ones(D + 1, D), VALUES: torch.ones(D - 1, D)}, r"expected \(12, 12\)"),
        ({f"{HEAD}.bias": torch.tensor([0.0, 0.0, torch.nan, 0.0, 0.0])}, "not finite real"),
        ({f"{HEAD}.bias": torch.ones(5, dtype=torch.int64)}, "torch.int64.* not finite real"),
        ({f"{HEAD}.bias": torch.ones(1).expand(10**9)}, "more bytes than the file has"),
        ({TABLE: torch.ones(4, 0)}, "not that of a published ASM"),
        ({TABLE: torch.ones(0, D)}, "not that of a published ASM"),
        ({7: torch.ones(1)}, "7 is not the name of a tensor"),
        ({"more": [1.0]}, "'more' is not the name of a tensor"),
    ],
)
def test_weights_that_are_not_an_asms_are_refused(
    changed: dict[Any, Any], message: str, tmp_path: Path
) -> None:
    content = published_content()
    content["model_state_dict"].update(changed)
    with pytest.raises(InvalidCheckpointError, match=message):
        load(write(tmp_path / "changed.pt", content))


@pytest.mark.parametrize("args", [[1, 2], {"num_heads": "four"}, {"num_heads": 5}])
def test_arguments_that_make_no_sense_are_refused(args: Any, tmp_path: Path) -> None:
    content = {**published_content(), "args": args}
    with pytest.raises(InvalidCheckpointError, match="not that of a published ASM"):
        load_published_asm(write(tmp_path / "args.pt", content))


def test_other_things_of_numpy_are_refused(tmp_path: Path) -> None:
    for value in (np.arange(3), np.float64(0.5), np.str_("text"), np.random.default_rng(0)):
        path = write(tmp_path / "other.pt", published_content(note=value))
        with pytest.raises(InvalidCheckpointError, match="without executing code"):
            load(path)


def without(key: str) -> Weights:
    weights = published_weights()
    del weights[key]
    return weights


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "not that of a published ASM"),
        ({"weights": {}}, "KeyError.*model_state_dict"),
        ({"model_state_dict": without("prediction_heads.1.3.bias")}, "prediction_heads.1.3.bias"),
        (
            {"model_state_dict": {**published_weights(), "value_head.weight": torch.ones(1)}},
            "does not have value_head.weight",
        ),
        (
            {
                "model_state_dict": {
                    **published_weights(),
                    "core_transformer.state_encoder.0.weight": torch.ones(5, OBSERVATION_SIZE),
                }
            },
            "not that of a published ASM",
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
    whole = checkpoint.read_bytes()
    for kept in range(0, len(whole), len(whole) // 50):
        (tmp_path / "half.pt").write_bytes(whole[:kept])
        with pytest.raises(InvalidCheckpointError, match="torch file"):
            load(tmp_path / "half.pt")
