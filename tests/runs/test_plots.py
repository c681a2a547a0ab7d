from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from spin_d3rlpy.evaluation.metrics import action_marginals
from spin_d3rlpy.runs import plots
from spin_d3rlpy.runs.plots import (
    COLORS,
    Curve,
    plot_action_marginals,
    plot_attention,
    plot_curve_panels,
    plot_returns,
)


def shows(path: Path, color: str, left: float = 0.0) -> bool:
    """Whether a picture, from a share `left` of its width on, shows a visible amount of a color."""
    image = imread(path)[..., :3]
    image = image[:, round(left * image.shape[1]) :]
    return bool((abs(image - to_rgb(color)) < 0.02).all(-1).sum() > 200)


def test_panels_have_a_line_per_method(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "curves.png"
    curve = Curve(np.arange(3.0), np.arange(6.0).reshape(2, 3))
    panels = {f"d{i}": {"one": curve, "two": curve} for i in range(3)}
    plot_curve_panels(path, panels, "return", {"d0": {"best": 9.0}})
    assert shows(path, COLORS[0])
    assert shows(path, COLORS[1])
    assert not shows(path, COLORS[2])


def test_a_method_looks_the_same_in_all_panels(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    curve = Curve(np.arange(2.0), np.ones((1, 2)))
    plot_curve_panels(path, {"first": {"one": curve, "two": curve}, "second": {"two": curve}})
    assert shows(path, COLORS[1], left=0.5)
    assert not shows(path, COLORS[0], left=0.5)


def test_more_lines_than_colors_are_all_drawn(tmp_path: Path) -> None:
    curve = Curve(np.arange(2.0), np.ones((1, 2)))
    panels = {"d": {str(i): curve for i in range(len(COLORS) + 2)}}
    plot_curve_panels(tmp_path / "curves.svg", panels)
    assert f"<!-- {len(COLORS) + 1} (1 seed) -->" in (tmp_path / "curves.svg").read_text()


def test_horizontal_lines_are_named(tmp_path: Path) -> None:
    curve = Curve(np.arange(2.0), np.array([[0.0, 100.0]]))
    lines = {f"published {name}": 40.0 for name in "ABCDE"}
    plot_curve_panels(tmp_path / "curves.svg", {"d": {"one": curve}}, reference_lines={"d": lines})
    text = (tmp_path / "curves.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in lines)


def test_returns_are_stacked_by_policy(tmp_path: Path) -> None:
    path = tmp_path / "returns.png"
    plot_returns(path, {"random": [0.0, 1.0], "expert": [9.0] * 5}, "title")
    assert shows(path, COLORS[0])
    assert shows(path, COLORS[1])


def test_attention_and_marginals_are_drawn(tmp_path: Path) -> None:
    maps = np.random.default_rng(0).random((2, 3, 4, 4))
    plot_attention(tmp_path / "attention.png", maps, ["state", "a", "b", "c"], "title")
    shares = action_marginals(np.array([[0, 1], [1, 4], [1, 0]]), [2, 5])
    plot_action_marginals(tmp_path / "actions.png", {"data": shares}, "title")
    for name in ("attention", "actions"):
        assert imread(tmp_path / f"{name}.png").std() > 0.05


def test_marginals_are_shares_of_each_slots_choices() -> None:
    shares = action_marginals(np.array([[0, 1], [1, 4], [1, 0]]), [2, 5])
    expected = [[1 / 3, 2 / 3, np.nan, np.nan, np.nan], [1 / 3, 1 / 3, 0, 0, 1 / 3]]
    np.testing.assert_allclose(shares, expected)


@pytest.mark.parametrize("name", ["a.jpg", "a"])
def test_other_formats_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.png, \.pdf, \.svg; got"):
        plot_returns(tmp_path / name, {"all": [1.0]}, "title")


def test_colors_are_told_apart_without_red_or_green() -> None:
    """Simulates the common color blindnesses by the mean of red and green."""
    seen: Any = np.array([to_rgb(color) for color in COLORS])
    merged = np.stack([seen[:, :2].mean(1), seen[:, 2]], 1)
    distances = np.linalg.norm(merged[:, None] - merged[None], axis=-1)
    assert distances[~np.eye(len(COLORS), dtype=bool)].min() > 0.08


def test_no_line_leads_through_pre_training(tmp_path: Path) -> None:
    """What is drawn between 0 and 80 is the shade alone."""
    figure = Figure()
    axes = figure.subplots()
    steps, returns = np.array([0.0, 85.0, 90.0, 100.0]), np.arange(8.0).reshape(2, 4)
    plots._draw_curve(
        axes, Curve(steps, returns, pretrained_at=80.0), "one", plots._Style(COLORS[0], "o")
    )
    x, y = axes.lines[0].get_xdata(), axes.lines[0].get_ydata()
    assert np.array_equal(x, [0.0, 80.0, 85.0, 90.0, 100.0])
    assert np.array_equal(np.isnan(y), [False, True, False, False, False])  # interrupted
    names = [str(text) for text in axes.get_legend_handles_labels()[1]]
    assert names == ["one is pre-trained, not measured", "one (2 seeds)"]
    (shade,) = axes.patches
    shaded = axes.transData.inverted().transform_bbox(shade.get_window_extent())
    assert (shaded.x0, shaded.x1) == pytest.approx((0.0, 80.0))
    path = tmp_path / "curves.png"
    plot_curve_panels(path, {"d": {"one": Curve(steps, returns, pretrained_at=80.0)}})
    assert shows(path, COLORS[0])


def test_there_is_a_band_only_where_there_are_several_seeds() -> None:
    for seeds in (1, 3):
        axes = Figure().subplots()
        curve = Curve(np.arange(4.0), np.arange(4.0 * seeds).reshape(seeds, 4))
        plots._draw_curve(axes, curve, "one", plots._Style(COLORS[0], "o"))
        assert len(axes.collections) == (seeds > 1)
        assert not axes.patches


def test_more_methods_than_colors_look_different(tmp_path: Path) -> None:
    curve = Curve(np.arange(2.0), np.ones((1, 2)))
    drawn: list[Any] = []
    keep: Any = plots._draw_curve

    def draw(axes: Any, curve: Curve, label: str, style: Any) -> None:
        drawn.append(style)
        keep(axes, curve, label, style)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_draw_curve", draw)
        lines = {f"method {i}": curve for i in range(10)}
        plots.plot_curve_panels(tmp_path / "curves.png", {"spin/x/medium-v0": lines})
    assert len(set(drawn)) == 10
