from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageSequence
from typer.testing import CliRunner

from spin_d3rlpy import DecQN, save_policy
from spin_d3rlpy.cli import app
from spin_d3rlpy.errors import InvalidCheckpointError, NvecMismatchError
from spin_d3rlpy.files.results import write_json
from spin_d3rlpy.runs.play import record_policy
from spin_d3rlpy.runs.policy import open_policy
from spin_d3rlpy.runs.training import POLICY, RESULT
from spin_envs import MissingDependencyError
from spin_envs.behavior import load_behavior_policy


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy that was never trained, for a maze with 4 actuators."""
    algo = DecQN(nvec=[2] * 4)
    algo.build_with_env(gymnasium.make("spin/maze-v0", actuators=4))
    path = tmp_path_factory.mktemp("policy") / "maze.d3"
    algo.save(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("env_id", "env_args"),
    [
        ("payload_of_a_run:x-v0", {}),
        ("spin/discretized-v0", {"env_id": "payload_of_a_run:x-v0"}),
        ("spin/maze-v0", {"deeper": [{"env_id": "payload_of_a_run:x-v0"}]}),
    ],
)
def test_a_runs_folder_imports_no_module(
    env_id: str, env_args: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "payload_of_a_run.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    algo = DecQN(nvec=[2] * 4)
    algo.build_with_env(gymnasium.make("spin/maze-v0", actuators=4))
    save_policy(algo, tmp_path / POLICY)
    write_json(tmp_path / RESULT, {"env": env_id, "env_args": env_args})
    with pytest.raises(ValueError, match="names 'payload_of_a_run:x-v0' for its environment"):
        open_policy(str(tmp_path)).make_env()
    assert "payload_of_a_run" not in sys.modules


def record(saved: str, out: Path, **kwargs: Any) -> float:
    return record_policy(saved, out, "spin/maze-v0", {"actuators": 4, "size": 64}, **kwargs)


def gif_durations(path: Path) -> list[int]:
    """Milliseconds of each frame; equal frames in a row are one."""
    with Image.open(path) as gif:
        return [frame.info["duration"] for frame in ImageSequence.Iterator(gif)]


def test_an_mp4_shows_every_step_at_the_environments_rate(saved: str, tmp_path: Path) -> None:
    out = tmp_path / "maze.mp4"
    total = record(saved, out, max_steps=20)
    assert total == pytest.approx(-1.0)
    frames, duration = imageio_ffmpeg.count_frames_and_secs(out)
    assert frames == 21
    assert duration == pytest.approx(2.1)


def test_a_file_without_pickle_is_recorded_the_same(saved: str, tmp_path: Path) -> None:
    algo: Any = d3rlpy.load_learnable(saved)
    path = tmp_path / "maze.safetensors"
    save_policy(algo, path)
    for name, policy in (("one.gif", saved), ("two.gif", str(path))):
        record(policy, tmp_path / name, max_steps=5)
    assert (tmp_path / "one.gif").read_bytes() == (tmp_path / "two.gif").read_bytes()
    path.write_bytes(b"")
    with pytest.raises(InvalidCheckpointError, match=r"maze\.safetensors"):
        record(str(path), tmp_path / "three.gif")


def test_a_whole_episode_is_recorded_without_a_limit(saved: str, tmp_path: Path) -> None:
    total = record(saved, tmp_path / "maze.gif")
    assert total == pytest.approx(-7.45)
    assert sum(gif_durations(tmp_path / "maze.gif")) == 151 * 100
    with Image.open(tmp_path / "maze.gif") as gif:
        first = np.array(gif.convert("RGB"), int)
    env = gymnasium.make("spin/maze-v0", actuators=4, size=64, render_mode="rgb_array")
    env.reset(seed=0)
    np.testing.assert_allclose(first, np.asarray(env.render()), atol=8)


def test_a_gif_of_a_fast_environment_leaves_frames_out(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spin_d3rlpy.runs.play.GIF_FPS", 5)
    record(saved, tmp_path / "maze.gif", max_steps=20)
    durations = gif_durations(tmp_path / "maze.gif")
    assert sum(durations) == 11 * 200
    assert len(durations) <= 11


def test_the_same_seed_records_the_same_episode(saved: str, tmp_path: Path) -> None:
    contents = []
    for i, seed in enumerate((1, 1, 2)):
        record(saved, tmp_path / f"{i}.gif", seed=seed, max_steps=15)
        contents.append((tmp_path / f"{i}.gif").read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_a_shipped_policy_knows_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    original = gymnasium.make

    class Blind(gymnasium.Wrapper[Any, Any, Any, Any]):
        def render(self) -> Any:  # needs no graphics back-end
            return np.zeros((16, 16, 3), np.uint8)

    def make(env_id: str, **kwargs: Any) -> Any:
        made.append((env_id, kwargs))
        return Blind(original(env_id, **kwargs))

    monkeypatch.setattr(gymnasium, "make", make)
    total = record_policy("cheetah-run-b3-expert", tmp_path / "a.gif", max_steps=60)
    assert made == [("spin/cheetah-run-v0", {"bins": 3, "render_mode": "rgb_array"})]

    env, policy = original("spin/cheetah-run-v0"), load_behavior_policy("cheetah-run-b3-expert")
    observation, _ = env.reset(seed=0)
    expected = 0.0
    for _ in range(60):
        observation, reward, *_ = env.step(policy(observation[None])[0])
        expected += float(reward)
    assert total == pytest.approx(expected)
    assert total > 5


def test_the_command_writes_the_file_and_says_the_return(saved: str, tmp_path: Path) -> None:
    out = tmp_path / "maze.gif"
    arguments = ["--env", "spin/maze-v0", "--env-arg", "actuators=4", "--env-arg", "size=64"]
    result = CliRunner().invoke(
        app, ["record", saved, "--out", str(out), *arguments, "--max-steps", "10"]
    )
    assert result.exit_code == 0, result.output
    assert "return -0.5" in result.output
    assert out.exists()


def test_the_help_warns_of_pickles() -> None:
    # typer 0.26 breaks lines at 80 columns whatever COLUMNS is.
    words = " ".join(CliRunner().invoke(app, ["record", "--help"]).output.split())
    assert "is a pickle" in words
    assert "only files you trust" in words


def test_bad_input_is_refused(saved: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.mp4 or \.gif, got 'a.avi'"):
        record(saved, tmp_path / "a.avi")
    with pytest.raises(FileNotFoundError, match=r"Shipped: .*cheetah-run-b3-expert"):
        record_policy("cheetah-run-b3-best", tmp_path / "a.mp4")
    with pytest.raises(FileNotFoundError, match=r"No file none\.d3"):
        record_policy("none.d3", tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="environment is unknown"):
        record_policy(saved, tmp_path / "a.mp4")
    with pytest.raises(
        NvecMismatchError, match=r"nvec=\[2, 2, 2, 2\], but spin/maze-v0 has nvec=\[2, 2\]"
    ):
        record_policy(saved, tmp_path / "a.mp4", "spin/maze-v0", {"actuators": 2})
    assert os.listdir(tmp_path) == []


def test_without_imageio_the_error_says_what_to_install(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio", None)
    with pytest.raises(MissingDependencyError, match=r"spin-d3rlpy\[video\]"):
        record(saved, tmp_path / "maze.mp4")
