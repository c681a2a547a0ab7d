from __future__ import annotations

from pathlib import Path

import pytest

from spin_d3rlpy.presets import PRESETS, get_preset
from spin_d3rlpy.reports import format_table, write_csv


def test_table_aligns_names_left_and_numbers_right() -> None:
    text = format_table([{"name": "a", "value": 1}, {"name": "long", "value": 123456}])
    assert text.splitlines() == [
        "name   value",
        "----  ------",
        "a          1",
        "long  123456",
    ]


def test_csv_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    write_csv(path, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    assert path.read_text() == "a,b\n1,x\n2,y\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    write_csv(path, [{"a": 1}])
    with pytest.raises(ValueError, match="fields"):
        write_csv(path, [{"a": 2}, {"a": 3, "b": 4}])
    assert path.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_paper_preset_is_the_configs_defaults() -> None:
    from spin_d3rlpy import PretrainingConfig, SPINIQLConfig, TransformerConfig

    preset = PRESETS["paper"]
    config = SPINIQLConfig()
    assert preset.transformer == TransformerConfig()
    assert preset.pretraining == PretrainingConfig() == config.pretraining
    assert (preset.n_steps, preset.batch_size) == (config.n_steps, config.batch_size)


def test_unknown_preset_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match="paper, cpu-small, smoke; got 'huge'"):
        get_preset("huge")
