from __future__ import annotations

import tests.fake_cuda.stubs  # noqa: F401  # before torch is imported

# isort: split

import os
import subprocess
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

import spin_envs.suite

# Networks here are tiny: threads cost more than they save, and far more next to other work, which
# other tests are. The variable is for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# The same cases every time in CI. Files that are read and networks that are built take a while.
hypothesis.settings.register_profile(
    "ci",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "thorough", hypothesis.settings.get_profile("ci"), max_examples=1000, derandomize=False
)
hypothesis.settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def short_episodes() -> Iterator[None]:
    """The suite's episodes end after 50 steps in this process, where only that they are counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spin_envs.suite, "EPISODE_STEPS", 50)
        yield


@pytest.fixture(scope="module")
def brief_tests_of_critics() -> Iterator[None]:
    """Tests of critics look at few states, where only that they are made counts.

    Policies that are hardly trained search for long.
    """
    # After the graphics back-end is chosen.
    from spin_d3rlpy.search import agreement, state_model, trust_bounds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "MOST_STATES", trust_bounds.LEAST_STATES)
        patch.setattr(state_model, "STEPS", 4)
        yield


@pytest.fixture
def few_states_in_tests_of_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of critics look at the fewest states, where only that they are made counts."""
    from spin_d3rlpy.search import agreement, trust_bounds  # after the graphics back-end is chosen

    monkeypatch.setattr(agreement, "MOST_STATES", trust_bounds.LEAST_STATES)


@pytest.fixture
def short_probes_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few updates ask whether data tell the next state, where they do not in any case."""
    from spin_d3rlpy.search import state_model_checks  # after the graphics back-end is chosen

    monkeypatch.setattr(state_model_checks, "PROBE_UPDATES", 5)


def _draws(**variables: str) -> bool:
    """Whether dm_control can draw, asked in a process of its own.

    A graphics back-end that is missing may abort the process that asks.
    """
    code = "from dm_control import suite; suite.load('pendulum', 'swingup').physics.render(8, 8)"
    asked = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, **variables}
    )
    return asked.returncode == 0


# pygame's windows go nowhere. Without this it takes EGL where there is no display, and closes it
# for MuJoCo, too.
os.environ["SDL_VIDEODRIVER"] = "dummy"
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"

# Before any test imports dm_control, which reads the variable then: d3rlpy does so where Shimmy is
# installed. A display needs none.
if "DISPLAY" not in os.environ and "MUJOCO_GL" not in os.environ:
    for _backend in ("egl", "osmesa"):
        if _draws(MUJOCO_GL=_backend):
            os.environ["MUJOCO_GL"] = _backend
            break


@pytest.fixture(scope="session")
def can_render() -> bool:
    """Whether MuJoCo can draw on this machine."""
    return _draws()


@pytest.fixture(scope="session")
def renders(can_render: bool) -> None:
    """Skips tests that draw with MuJoCo on a machine where it cannot."""
    if not can_render:
        pytest.skip("no graphics back-end: set MUJOCO_GL=egl or osmesa")
