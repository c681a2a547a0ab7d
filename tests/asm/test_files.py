from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from spin_d3rlpy.asm import ActionStructureModel, TransformerConfig, load_asm, save_asm
from spin_d3rlpy.errors import InvalidCheckpointError


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
    with pytest.raises(InvalidCheckpointError, match="not an action structure model"):
        load_asm(path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(InvalidCheckpointError, match="not a readable ASM file"):
        load_asm(path)


def test_weights_of_another_shape_are_refused(asm: ActionStructureModel, tmp_path: Path) -> None:
    path = tmp_path / "asm.safetensors"
    asm.nvec = [3, 4]
    save_asm(asm, path)
    with pytest.raises(InvalidCheckpointError, match="does not hold the weights"):
        load_asm(path)


def test_a_failed_save_leaves_the_old_file(
    asm: ActionStructureModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "asm.safetensors"
    save_asm(asm, path)
    before = path.read_bytes()

    def fail(*_args: object) -> None:
        Path(str(_args[1])).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="No space"):
        save_asm(asm, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
