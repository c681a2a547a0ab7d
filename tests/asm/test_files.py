from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from spin_d3rlpy import SPINIQL
from spin_d3rlpy.asm import ActionStructureModel, TransformerConfig, load_asm, save_asm
from spin_d3rlpy.errors import InvalidCheckpointError
from tests.saved_files import read_saved, write_saved


@pytest.fixture
def asm() -> ActionStructureModel:
    return ActionStructureModel(5, [3, 2], TransformerConfig(width=8, n_blocks=1, n_heads=2))


def test_what_is_loaded_is_what_was_saved(asm: ActionStructureModel, tmp_path: Path) -> None:
    asm.observation_scaler = {"type": "standard", "params": {"eps": 0.001}}
    save_asm(asm, tmp_path / "asm.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["asm.safetensors"]
    loaded = load_asm(tmp_path / "asm.safetensors")
    assert (loaded.nvec, loaded.config) == ([3, 2], asm.config)
    assert loaded.observation_scaler == asm.observation_scaler
    assert not loaded.training
    for name, value in asm.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No ASM file at .*nothing"):
        load_asm(tmp_path / "nothing.safetensors")


def test_truncated_file_is_refused(asm: ActionStructureModel, tmp_path: Path) -> None:
    path = tmp_path / "asm.safetensors"
    save_asm(asm, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidCheckpointError, match="not a readable ASM file"):
        load_asm(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(InvalidCheckpointError, match="not a spin-d3rlpy action structure model"):
        load_asm(path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(InvalidCheckpointError, match="not a readable ASM file"):
        load_asm(path)


def test_weights_of_another_shape_are_refused(asm: ActionStructureModel, tmp_path: Path) -> None:
    path = tmp_path / "asm.safetensors"
    asm.nvec = [3, 4]
    save_asm(asm, path)
    with pytest.raises(InvalidCheckpointError, match=r"needs embedding\.weight"):
        load_asm(path)


Change = Callable[[Any, dict[str, torch.Tensor]], object]
CHANGES: dict[str, tuple[Change, str]] = {
    "other version": (lambda h, w: h.update(version=2), "format version 2"),
    "no nvec": (lambda h, w: h.pop("nvec"), "nvec"),
    "empty nvec": (lambda h, w: h.update(nvec=[]), "positive"),
    "negative nvec": (lambda h, w: h.update(nvec=[3, -2]), "positive"),
    "text nvec": (lambda h, w: h.update(nvec="32"), "positive"),
    "huge nvec": (lambda h, w: h.update(nvec=[10**12]), "fewer weights"),
    "many slots": (lambda h, w: h.update(nvec=[1] * 10**5), "fewer weights"),
    "ragged nvec": (lambda h, w: h.update(nvec=[900] + [1] * 900), "fewer weights"),
    "huge observations": (lambda h, w: h.update(observation_size=10**12), "fewer weights"),
    "text observations": (lambda h, w: h.update(observation_size="5"), "positive"),
    "huge width": (lambda h, w: h["config"].update(width=10**6), "needs"),
    "many blocks": (lambda h, w: h["config"].update(n_blocks=10**9), "n_blocks in"),
    "no heads": (lambda h, w: h["config"].update(n_heads=0), "n_heads"),
    "text width": (lambda h, w: h["config"].update(width="8"), "width"),
    "huge dropout": (lambda h, w: h["config"].update(dropout=3.0), "dropout"),
    "unknown field": (lambda h, w: h["config"].update(eval="1"), "eval"),
    "no configuration": (lambda h, w: h.update(config=None), "NoneType|mapping"),
    "scaler that is none": (lambda h, w: h.update(observation_scaler=[1]), "scaler"),
    "a weight too few": (lambda h, w: w.pop("embedding.weight"), "it holds nothing"),
    "a weight too many": (lambda h, w: w.update(extra=torch.zeros(1)), "extra as nothing"),
    "another type": (
        lambda h, w: w.update({"embedding.weight": w["embedding.weight"].half()}),
        "it holds",
    ),
    "not finite": (lambda h, w: w["embedding.weight"][0].fill_(torch.nan), "not finite"),
    "long header": (lambda h, w: h.update(padding=" " * 2**24), "configuration has"),
}


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_files_of_strangers_are_refused_in_little_memory(
    kind: str, asm: ActionStructureModel, tmp_path: Path
) -> None:
    change, problem = CHANGES[kind]
    path = tmp_path / "asm.safetensors"
    save_asm(asm, path)
    header, weights = read_saved(path)
    change(header, weights)
    write_saved(path, header, weights)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidCheckpointError, match=problem) as caught:
            load_asm(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 2**27


def test_files_over_the_limit_are_refused_unread(asm: ActionStructureModel, tmp_path: Path) -> None:
    path = tmp_path / "asm.safetensors"
    save_asm(asm, path)
    size = path.stat().st_size
    with pytest.raises(InvalidCheckpointError, match=rf"{size} bytes, over the limit of 1000"):
        load_asm(path, max_bytes=1000)
    load_asm(path, max_bytes=size)


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        {"type": "eval"},
        {"type": "standard", "params": {"mean": "x"}},
        {"type": "standard", "params": {"mean": [0.0] * 4, "std": [1.0] * 4}},
        {"type": "standard", "params": {"mean": [0.0] * 5, "std": [float("nan")] * 5}},
        {"type": "none", "params": {}},
    ],
)
def test_an_asm_with_an_unknown_scaler_is_refused_where_it_is_used(
    encoded: Any, asm: ActionStructureModel
) -> None:
    asm.observation_scaler = encoded
    with pytest.raises(InvalidCheckpointError, match="not an observation scaler"):
        SPINIQL(asm=asm)


def test_a_failed_save_leaves_the_old_file(
    asm: ActionStructureModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "asm.safetensors"
    save_asm(asm, path)
    before = path.read_bytes()

    def fail(partial: Path, content: bytes) -> None:
        with partial.open("wb") as file:
            file.write(content[:10])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        save_asm(asm, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
