"""The couriers' map: who goes where, one policy next to another, as an animation."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.files.atomic import write_bytes
from spin_envs.copies import copies_of
from spin_envs.dispatch import GRID
from spin_envs.rollout import rollout

if TYPE_CHECKING:  # matplotlib takes a second to import
    from matplotlib.axes import Axes

FIRST_FRAME = "map.png"
FRAMES = 20  # steps that are drawn; a GIF of all 50 takes a laptop ten seconds
SECONDS_A_FRAME = 0.8
DOTS_PER_INCH = 90
# Told apart by readers with any form of color blindness, and by their shapes.
COURIER, ORDER, WASTED = "#0072B2", "#E69F00", "#D62728"

Act = Callable[[NDArray[np.float32]], NDArray[np.int64]]


@dataclasses.dataclass(frozen=True)
class CourierEpisode:
    """An episode of T steps with N couriers and as many orders.

    Attributes:
        couriers: their cells before each step, `(T, N, 2)`, x and y.
        orders: cells of the orders, `(T, N, 2)`.
        actions: the order that each courier is sent to, N to stay, `(T, N)`.
        served: orders that were served in each step, `(T,)`.
    """

    couriers: NDArray[np.int64]
    orders: NDArray[np.int64]
    actions: NDArray[np.int64]
    served: NDArray[np.int64]

    @property
    def wasted(self) -> NDArray[np.bool_]:
        """Whether a courier was sent in vain, because another one was sent there, `(T, N)`."""
        return wasted_couriers(self.actions, self.couriers, self.orders)


def wasted_couriers(
    actions: NDArray[np.int64], couriers: NDArray[np.int64], orders: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Returns which couriers lose the step to a nearer one (or the first of equals), `(T, N)`.

    Arguments are those of `CourierEpisode`.
    """
    n_steps, n = actions.shape
    wasted = np.zeros((n_steps, n), dtype=np.bool_)
    for t in range(n_steps):
        nearest: dict[int, tuple[int, int]] = {}  # by order: distance and courier
        for courier, order in enumerate(actions[t].tolist()):
            if order == n:
                continue
            distance = int(np.abs(couriers[t, courier] - orders[t, order]).sum())
            if order not in nearest or distance < nearest[order][0]:
                nearest[order] = (distance, courier)
        goes = [courier for _, courier in nearest.values()]
        wasted[t] = actions[t] < n
        wasted[t, goes] = False
    return wasted


def wasted_share(actions: NDArray[Any]) -> float:
    """Returns the share of couriers that lose the step to another one, of actions `(T, N)`."""
    n = actions.shape[1]
    in_order = np.sort(actions, axis=1)
    same = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] < n)
    return float(same.sum() / actions.size)


def play_couriers(env: gymnasium.Env[Any, Any], act: Act, seed: int) -> CourierEpisode:
    """Plays one seeded episode of `spin/dispatch-v0`.

    Args:
        env: the environment; a copy of it is played in.
        act: returns actions `(1, N)` for an observation `(1, 5 N)`.
        seed: of the episode.
    """
    envs = copies_of(env, 1)
    try:
        (episode,) = rollout(envs, lambda x, _: np.asarray(act(x), dtype=np.int64), [seed])
    finally:
        envs.close()
    actions = episode.actions
    n_steps, n = actions.shape
    cells = np.rint(episode.observations[:-1] * (GRID - 1)).astype(np.int64)
    return CourierEpisode(
        couriers=cells[:, : 2 * n].reshape(n_steps, n, 2),
        orders=cells[:, 2 * n :].reshape(n_steps, n, 3)[..., :2],
        actions=actions,
        served=np.rint(episode.rewards * n).astype(np.int64),
    )


def draw_map(folder: Path, episodes: Mapping[str, CourierEpisode], frames: int = FRAMES) -> Path:
    """Draws episodes side by side, as `map.gif`; its first frame also as `map.png`.

    Args:
        folder: of the files.
        episodes: by title of their panel, all from the same start.
        frames: number of steps to draw, from the first.

    Returns:
        The animation's file.

    Raises:
        FileWriteError: a file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image  # matplotlib needs it, too

    figure = Figure(figsize=(4.4 * len(episodes), 5.2), dpi=DOTS_PER_INCH)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.94, bottom=0.16, wspace=0.05)
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib does not type it
    panels = figure.subplots(1, len(episodes), squeeze=False)[0]
    n_steps = min(frames, *(len(episode.actions) for episode in episodes.values()))
    images = []
    for t in range(n_steps):
        for axes, (title, episode) in zip(panels, episodes.items(), strict=True):
            axes.clear()
            _draw_step(axes, episode, t)
            axes.set_title(title, fontsize=11)
        if t == 0:
            figure.legend(*panels[0].get_legend_handles_labels(), **_LEGEND)
        canvas.draw()
        images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()))
    folder.mkdir(parents=True, exist_ok=True)
    first, animation = io.BytesIO(), io.BytesIO()
    images[0].save(first, format="png")
    write_bytes(folder / FIRST_FRAME, first.getbuffer())
    images[0].save(
        animation,
        format="gif",
        save_all=True,
        append_images=images[1:],
        duration=round(1000 * SECONDS_A_FRAME),
        loop=0,
    )
    path = folder / "map.gif"
    write_bytes(path, animation.getbuffer())
    return path


_LEGEND: dict[str, Any] = {
    "loc": "lower center",
    "ncols": 4,
    "frameon": False,
    "fontsize": 9,
}


def _draw_step(axes: Axes, episode: CourierEpisode, t: int) -> None:
    """Draws where couriers and orders are before a step, and who is sent where in it."""
    couriers, orders, actions = episode.couriers[t], episode.orders[t], episode.actions[t]
    n, wasted = len(couriers), episode.wasted[t]
    for courier, order in enumerate(actions):
        if order < n:
            (x, y), (to_x, to_y) = couriers[courier], orders[order]
            style: dict[str, Any] = {"color": COURIER, "linewidth": 1.3}
            if wasted[courier]:
                style = {"color": WASTED, "linewidth": 1.6, "linestyle": (0, (3, 2))}
            axes.plot([x, to_x], [y, to_y], zorder=1, **style)
    taken_twice = np.unique(actions[wasted])
    common: dict[str, Any] = {"zorder": 2, "edgecolors": "white", "linewidths": 0.6}
    axes.scatter(orders[:, 0], orders[:, 1], s=70, marker="s", color=ORDER, label="order", **common)
    axes.scatter(couriers[:, 0], couriers[:, 1], s=45, color=COURIER, label="courier", **common)
    axes.scatter(
        orders[taken_twice, 0],
        orders[taken_twice, 1],
        s=190,
        marker="o",
        facecolors="none",
        edgecolors=WASTED,
        linewidths=2.0,
        zorder=3,
        label="two or more sent to one order",
    )
    axes.plot([], [], color=WASTED, linestyle=(0, (3, 2)), label="sent in vain")
    axes.set_xlim(-0.7, GRID - 0.3)
    axes.set_ylim(-0.7, GRID - 0.3)
    axes.set_xticks(np.arange(GRID) - 0.5, [])
    axes.set_yticks(np.arange(GRID) - 0.5, [])
    axes.tick_params(length=0)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.set_aspect("equal")
    axes.set_xlabel(
        f"step {t + 1}: {int(wasted.sum())} of {n} couriers sent in vain\n"
        f"so far {int(episode.served[: t + 1].sum())} orders served, "
        f"{int(episode.wasted[: t + 1].sum())} trips in vain",
        fontsize=10,
    )
