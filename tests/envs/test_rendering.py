from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pygame
import pytest
from numpy.typing import NDArray

import spin_envs  # noqa: F401 - registers the environments
from tests.subprocesses import run_python_with_errors

SMALL: dict[str, dict[str, Any]] = {
    "spin/maze-v0": {"size": 64},
    "spin/cheetah-run-v0": {"width": 64, "height": 48},
}


def make(name: str, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(name, **{**SMALL.get(name, {}), **kwargs})


def make_shown(name: str) -> gymnasium.Env[Any, Any]:
    with pytest.warns(UserWarning, match="HumanRendering"):  # Gymnasium's wrapper
        return make(name, render_mode="human")


def steps(env: gymnasium.Env[Any, Any], n: int) -> None:
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(n):
        env.step(env.action_space.sample())


def window_pixels() -> NDArray[np.uint8]:
    """What the open window shows, `(height, width, 3)`."""
    surface: Any = pygame.display.get_surface()
    return pygame.surfarray.array3d(surface).swapaxes(0, 1).copy()


@pytest.mark.parametrize("env_id", SMALL)
@pytest.mark.usefixtures("renders")
def test_human_mode_shows_each_state_in_a_window_by_itself(env_id: str) -> None:
    shown, frames = make_shown(env_id), make(env_id, render_mode="rgb_array")
    steps(shown, 3)
    steps(frames, 3)
    expected: Any = frames.render()
    np.testing.assert_array_equal(window_pixels(), expected)
    assert shown.render() is None
    shown.close()
    frames.close()
    assert pygame.display.get_surface() is None


def test_human_mode_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_shown("spin/maze-v0")
    waits: list[int] = []

    class Clock:
        def tick(self, fps: int) -> None:
            waits.append(fps)

    monkeypatch.setattr(pygame.time, "Clock", Clock)
    steps(env, 2)
    assert waits == [10, 10, 10]
    env.close()


@pytest.mark.usefixtures("renders")
def test_cameras_are_chosen_by_index_or_name() -> None:
    frames = []
    for camera_id in (0, "side", 1, "back", -1):
        env = make("spin/cheetah-run-v0", render_mode="rgb_array", camera_id=camera_id)
        steps(env, 1)
        frame: Any = env.render()
        assert frame.shape == (48, 64, 3)
        assert frame.dtype == np.uint8
        frames.append(frame)
        env.close()
    np.testing.assert_array_equal(frames[0], frames[1])
    np.testing.assert_array_equal(frames[2], frames[3])
    assert len({frame.tobytes() for frame in frames}) == 3


@pytest.mark.usefixtures("renders")
@pytest.mark.parametrize("env_id", SMALL)
def test_record_video_works_headless(env_id: str, tmp_path: Path) -> None:
    env = make(env_id, render_mode="rgb_array", max_episode_steps=5)
    fps = env.metadata["render_fps"]
    video = gymnasium.wrappers.RecordVideo(
        env, str(tmp_path / "videos"), episode_trigger=lambda _: True
    )
    steps(video, 5)
    video.close()
    (path,) = (tmp_path / "videos").glob("*.mp4")
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(path)
    assert frames == 6
    assert seconds == pytest.approx(6 / fps, abs=0.02)


def test_frame_rates_are_those_of_the_instance() -> None:
    envs = [
        make("spin/cheetah-run-v0"),
        make("spin/finger-spin-v0"),
        make("spin/maze-v0"),
        make("spin/discretized-v0", env_id="Pendulum-v1"),
    ]
    assert [env.metadata["render_fps"] for env in envs] == [100, 50, 10, 30]


def _graphics_errors(backend: str, env_id: str, **variables: str) -> list[str]:
    """Draws twice with a back-end that this machine lacks, and returns the errors."""
    output, printed = run_python_with_errors(
        "import os, sys\n"
        "os.environ.pop('DISPLAY', None)\n"
        f"os.environ.update({ {'MUJOCO_GL': backend, **variables}!r})\n"
        "import gymnasium, spin_envs\n"
        "for _ in range(2):\n"
        "    try:\n"
        f"        env = gymnasium.make({env_id!r}, render_mode='rgb_array')\n"
        "        env.reset(seed=0)\n"
        "        env.render()\n"
        "    except spin_envs.MissingDependencyError as error:\n"
        "        print(error)"
    )
    assert "Exception ignored" not in printed  # of a half-made context's destructor
    return output.splitlines()


@pytest.mark.parametrize("env_id", ["spin/cheetah-run-v0", "spin/quadruped-escape-v0"])
def test_where_nothing_can_draw_each_try_names_the_variable(env_id: str) -> None:
    errors = _graphics_errors("glfw", env_id)
    assert len(errors) == 2
    for error in errors:
        assert "set MUJOCO_GL=egl or MUJOCO_GL=osmesa" in error
        assert ("quadruped-escape, which draws its terrain" in error) == ("escape" in env_id)


@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_a_back_end_without_its_library_is_named(backend: str) -> None:
    missing = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/none", "LD_LIBRARY_PATH": "/none"}
    errors = _graphics_errors(backend, "spin/cheetah-run-v0", **missing)
    if not errors and backend == "osmesa":
        pytest.skip("OSMesa is installed")
    assert len(errors) == 2
    assert all(f"MUJOCO_GL={backend}: " in error for error in errors)


def test_discretized_tasks_draw_themselves() -> None:
    env = make("spin/discretized-v0", env_id="Pendulum-v1", render_mode="rgb_array")
    steps(env, 1)
    frame: Any = env.render()
    assert frame.shape == (500, 500, 3)
    env.close()
