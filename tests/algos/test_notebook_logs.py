"""What a training writes into a notebook's cell."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from d3rlpy.logging import LOG, FileAdapterFactory
from d3rlpy.preprocessing import StandardObservationScaler

from spin_d3rlpy import SPINIQL, FactoredBC, PretrainingConfig, TransformerConfig
from spin_d3rlpy.algos.notebook_logs import is_notebook, only_warnings
from tests.algos.problems import new_algorithm, random_buffer


def shell(**parts: Any) -> Any:
    """Stands for the module IPython with a running shell."""
    return SimpleNamespace(get_ipython=lambda: SimpleNamespace(**parts))


def test_a_kernel_is_a_notebook_and_a_terminal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", shell())
    assert not is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", shell(kernel="a kernel"))
    assert is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not is_notebook()


@pytest.mark.parametrize("notebook", [False, True])
def test_a_notebook_shows_no_metrics_and_files_hold_them(
    notebook: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", shell(**({"kernel": "one"} if notebook else {})))
    adapter = FileAdapterFactory(str(tmp_path))
    algo = FactoredBC(batch_size=16)
    rows = algo.fit(
        random_buffer(),
        n_steps=6,
        n_steps_per_epoch=2,
        experiment_name="run",
        with_timestamp=False,
        logger_adapter=adapter,
        show_progress=False,
    )
    shown = capsys.readouterr().out
    for text in ("metrics=", "params=", "Model parameters are saved"):
        assert (text in _plain(shown)) is not notebook
    with (tmp_path / "run" / "loss.csv").open() as file:
        losses = [float(row[-1]) for row in csv.reader(file)]
    assert losses == [row["loss"] for _, row in rows]
    assert len(list((tmp_path / "run").glob("model_*.d3"))) == 3


def test_warnings_stay_and_the_log_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    with only_warnings():
        LOG.info("one")
        LOG.warning("two")
    LOG.info("three")
    shown = capsys.readouterr().out
    assert "one" not in shown
    assert "two" in shown
    assert "three" in shown


def _plain(text: str) -> str:
    """Removes colors, which stand between a name and its equals sign."""
    parts = text.split("\x1b[")
    return parts[0] + "".join(part.split("m", 1)[-1] for part in parts[1:])


def test_the_line_of_parameters_says_what_is_not_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []

    def info(event: str, **parts: Any) -> None:
        if event == "Parameters":
            lines.append(parts["params"])

    # `setattr` would leave the method of today's configuration in the logger, for all later tests.
    monkeypatch.setitem(vars(LOG), "info", info)
    algo = new_algorithm(
        SPINIQL,
        batch_size=19,
        transformer=TransformerConfig(width=16, n_blocks=1),
        pretraining=PretrainingConfig(max_updates=1),
        observation_scaler=StandardObservationScaler(),
    )
    algo.fit(random_buffer(), n_steps=1, logger_adapter=FileAdapterFactory(str(tmp_path)))
    line = lines[-1]  # each stage has one
    assert line["batch_size"] == 19
    assert line["nvec"] == "[3, 5, 2]"
    assert line["observation_scaler"] == "standard"
    factory = line["policy"]["params"]
    assert factory["transformer"] == {"width": 16, "n_blocks": 1}
    assert factory["pretraining"] == {"max_updates": 1}
    assert len(str(line)) < 400
    written = json.loads(next(tmp_path.glob("*/params.json")).read_text())
    assert len(written["config"]["params"]["observation_scaler"]["params"]["mean"]) == 7
