"""What comes out of d3rlpy's buffers is what went in: episodes and actions of any kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
import pytest
from d3rlpy.dataset import FIFOBuffer, InfiniteBuffer, MixedReplayBuffer, ReplayBuffer
from gymnasium.spaces import Box, MultiDiscrete

from spin_d3rlpy import FactoredBC, FactoredIQL, collect, create_replay_buffer
from spin_d3rlpy._compat import DiscreteView
from spin_d3rlpy.data import DeviceReplayBuffer

QUIET: dict[str, Any] = {
    "logger_adapter": d3rlpy.logging.NoopAdapterFactory(),
    "show_progress": False,
}


class Numbered(gymnasium.Env[Any, Any]):
    """Observes episode and step, and remembers what was done."""

    def __init__(
        self, length: int, dtype: Any = np.int64, ends: bool = True, stop: int = 0
    ) -> None:
        self.observation_space = Box(-1e9, 1e9, (2,), np.float32)
        self.action_space = MultiDiscrete([3, 2], dtype=dtype)
        self.length, self.ends, self.stop = length, ends, stop
        self.episode = 0
        self.done: list[list[int]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        if self.stop and len(self.done) == self.stop:
            raise KeyboardInterrupt
        self.steps += 1
        self.done.append([self.episode, self.steps - 1, *np.asarray(action).tolist()])
        over = self.steps >= self.length
        seen = np.array([self.episode, self.steps], np.float32)
        return seen, float(self.steps), over and self.ends, over and not self.ends, {}


def rows(buffer: Any) -> list[list[float]]:
    """Episode, step and action of each transition."""
    return [
        [*observation.tolist(), *action.tolist()]
        for episode in buffer.episodes
        for observation, action in zip(
            episode.observations[: episode.transition_count], episode.actions, strict=False
        )
    ]


def algorithm(env: Any) -> FactoredBC:
    algo = FactoredBC(batch_size=4)
    algo.build_with_env(env)
    return algo


@pytest.mark.parametrize("ends", [True, False], ids=["terminated", "truncated"])
@pytest.mark.parametrize(("length", "n_steps"), [(1, 7), (2, 8), (10_001, 20_002)])
def test_episodes_of_any_length_come_out_as_they_went_in(
    length: int, n_steps: int, ends: bool
) -> None:
    env = Numbered(length, ends=ends)
    algo = algorithm(env)
    space = DiscreteView(env).action_space
    # Sampling by a network would take most of the time.
    algo.sample_action = lambda x: np.stack([space.sample() for _ in x])  # type: ignore[method-assign]
    buffer: Any = algo.collect(env, n_steps=n_steps, show_progress=False)
    # Of a truncated episode the last step has no next observation.
    expected = [row for row in env.done if ends or row[1] < length - 1]
    assert rows(buffer) == expected
    assert buffer.transition_count == len(expected)
    assert all(
        len({e[0] for e in episode.observations.tolist()}) == 1 for episode in buffer.episodes
    )
    if expected:
        read = DeviceReplayBuffer.from_replay_buffer(buffer, [3, 2])
        assert read.actions.tolist() == [row[2:] for row in expected]
        assert read.size() == n_steps // length
        assert read.terminals.sum() == (n_steps // length if ends else 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64, np.int8, np.int32, np.int64])
@pytest.mark.parametrize("start", [0, 5])
def test_actions_of_any_type_stay_whole_numbers(dtype: Any, start: int) -> None:
    env = Numbered(3, dtype)
    env.action_space = MultiDiscrete([3, 2], dtype=dtype, start=np.array([start, 0], dtype))
    buffer: Any = algorithm(env).collect(env, n_steps=9, show_progress=False)
    assert all(episode.actions.dtype.kind == "i" for episode in buffer.episodes)
    assert rows(buffer) == [[e, s, a - start, b] for e, s, a, b in env.done]
    assert all(isinstance(number, int) for row in env.done for number in row)
    played = collect(env, lambda _: env.action_space.sample(), 2, progress=False)
    assert played.actions.tolist() == [[a - start, b] for _, _, a, b in env.done[9:]]


def test_a_buffer_of_the_user_keeps_short_and_long_episodes() -> None:
    env = Numbered(1)
    view: Any = DiscreteView(env)
    makers: list[Callable[[], ReplayBuffer]] = [
        lambda: ReplayBuffer(InfiniteBuffer(), env=view, cache_size=2),
        lambda: ReplayBuffer(FIFOBuffer(100), env=view, cache_size=2, write_at_termination=True),
    ]
    for make in makers:
        env.length, env.done = 1, []
        algo = algorithm(env)
        buffer = make()
        algo.collect(env, buffer, n_steps=3, show_progress=False)
        env.length = 5
        algo.collect(env, buffer, n_steps=10, show_progress=False)
        assert rows(buffer) == env.done
    mixed = MixedReplayBuffer(make(), make(), 0.5)
    env.done = []
    algorithm(env).collect(env, mixed, n_steps=10, show_progress=False)
    assert rows(mixed._primary_replay_buffer) == env.done


def test_fit_online_takes_episodes_of_any_length() -> None:
    for length in (1, 10_001):
        env = Numbered(length)
        algo = algorithm(env)
        space = DiscreteView(env).action_space
        algo.sample_action = lambda x, s=space: np.stack([s.sample() for _ in x])  # type: ignore
        buffer = create_replay_buffer(env)
        n_steps = length + 20
        algo.fit_online(env, buffer, n_steps=n_steps, update_start_step=n_steps - 1, **QUIET)
        assert rows(buffer)[:length] == env.done[:length]


def test_fit_online_and_collect_have_d3rlpys_arguments() -> None:
    for name in ("fit_online", "collect"):
        own = inspect.signature(getattr(FactoredIQL, name)).parameters
        host = inspect.signature(getattr(d3rlpy.algos.DQN, name)).parameters
        assert list(own) == list(host)
        assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in own.values())
        different = {n for n in own if own[n].default != host[n].default}
        assert different <= {"logger_adapter"}
    with pytest.raises(TypeError, match="n_step"):
        algorithm(Numbered(3)).fit_online(Numbered(3), n_step=3)  # type: ignore[call-arg]


def test_an_interrupt_keeps_what_is_collected() -> None:
    env = Numbered(4, stop=10)
    with pytest.warns(UserWarning, match="Interrupted: 2 of 100 episodes are kept"):
        played = collect(env, lambda _: env.action_space.sample(), progress=False)
    assert played.actions.tolist() == [row[2:] for row in env.done[:8]]
    env = Numbered(4, stop=10)
    with pytest.warns(UserWarning, match="Interrupted: 9 transitions are kept"):
        buffer = algorithm(env).collect(env, n_steps=50, show_progress=False)
    assert rows(buffer) == env.done[:9]  # the tenth has no next observation yet


def test_an_interrupt_before_anything_is_collected_is_one() -> None:
    env = Numbered(4, stop=1)
    with pytest.raises(KeyboardInterrupt):
        collect(env, lambda _: env.action_space.sample(), progress=False)
    with pytest.raises(KeyboardInterrupt):
        algorithm(env).collect(env, n_steps=50, show_progress=False)


def test_a_buffer_of_one_transition_is_refused() -> None:
    with pytest.raises(ValueError, match="limit of at least 2 transitions, got 1"):
        create_replay_buffer(Numbered(3), limit=1)
