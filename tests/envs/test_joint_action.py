"""Several agents as one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from spin_d3rlpy import FactoredBC, collect, create_replay_buffer
from spin_envs import Bins, InvalidActionError, joint_action


class Team:
    """Agent i counts to i + 2, then leaves; each is paid its choice."""

    def __init__(self, sizes: tuple[int, ...] = (3, 3, 3), actions: tuple[int, ...] = (4, 4, 4)):
        self.possible_agents = [f"agent_{i}" for i in range(len(sizes))]
        self._sizes, self._actions = sizes, actions
        self.agents: list[str] = []
        self.closed = False

    def _number(self, agent: str) -> int:
        return int(agent[-1])

    def observation_space(self, agent: str) -> Any:
        return Box(-1.0, 9.0, (self._sizes[self._number(agent)],))

    def action_space(self, agent: str) -> Any:
        return Discrete(self._actions[self._number(agent)], start=1)

    def _observe(self) -> dict[str, Any]:
        return {
            agent: np.full(self._sizes[self._number(agent)], self._time, np.float32)
            for agent in self.agents
        }

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._time = list(self.possible_agents), 0
        return self._observe(), {}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        self._time += 1
        self.last = actions
        observations = self._observe()
        over = {agent: self._time >= self._number(agent) + 2 for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        rewards = {agent: float(choice) for agent, choice in actions.items()}
        return observations, rewards, over, dict.fromkeys(over, False), {}

    def close(self) -> None:
        self.closed = True


def test_one_action_is_all_agents_actions() -> None:
    team = Team()
    env = joint_action(team)
    x, info = env.reset(seed=0)
    assert x.tolist() == [0.0] * 9
    assert info["action_mask"].all()
    x, reward, terminated, truncated, _ = env.step(np.array([0, 1, 3]))
    assert team.last == {"agent_0": 1, "agent_1": 2, "agent_2": 4}  # spaces start at 1
    assert (x.tolist(), reward, terminated, truncated) == ([1.0] * 9, 7.0, False, False)
    _, _, _, _, info = env.step(np.array([0, 0, 0]))  # the first agent leaves
    assert info["action_mask"].tolist() == [[True, False, False, False], [True] * 4, [True] * 4]
    x, reward, *_ = env.step(np.array([0, 0, 0]))
    assert x[:3].tolist() == [0.0] * 3
    assert reward == 2.0
    _, _, terminated, truncated, _ = env.step(np.array([0, 0, 0]))
    assert (terminated, truncated) == (True, False)
    env.close()
    assert team.closed


def test_observations_of_agents_are_features_of_slots() -> None:
    layout = joint_action(Team()).layout
    assert layout.slot_columns == ((0, 1, 2), (3, 4, 5), (6, 7, 8))
    assert layout.shared_choices
    assert not layout.has_choice_features
    assert layout.has_features
    assert layout.slot_features == ()
    different = joint_action(Team((3, 2, 3), (4, 2, 4)))
    assert not different.layout.shared_choices
    x, info = different.reset()
    assert info["action_mask"][1].tolist() == [True, True, False, False]
    # Observations are as long as the longest, so that agents of all sizes have a layout.
    x, *_ = different.step(np.zeros(3, int))
    assert x.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert different.observation_space.contains(x)
    assert different.layout.slot_columns == ((0, 1, 2), (3, 4, 5), (6, 7, 8))
    assert different.layout.slot_features == ((1, 0), (0, 1), (1, 0))  # two kinds of agents


def test_the_team_is_paid_the_sum_or_the_mean() -> None:
    env = joint_action(Team(), reward="mean")
    env.reset()
    assert env.step(np.array([0, 1, 3]))[1] == pytest.approx(7 / 3)
    with pytest.raises(ValueError, match="'sum' or 'mean'"):
        joint_action(Team(), reward="max")  # type: ignore[arg-type]


class Speaking(Team):
    """Agents whose actions cannot be slots."""

    def action_space(self, agent: str) -> Any:
        return Text(3)


class Steering(Team):
    """Agents with sticks."""

    def action_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (1,))


def test_a_teams_bins_are_made_of_its_log() -> None:
    names = Steering().possible_agents
    log = [{name: np.array([x], np.float32) for name in names} for x in (0.0, 1.0, 8.0, 9.0)]
    with pytest.raises(ValueError, match="finite bounds"):
        joint_action(Steering(), bins=2)
    team = joint_action(Steering(), bins=Bins(2, by="quantiles"), log=log)
    assert team.nvec.tolist() == [2, 2, 2]
    assert [team.actions.value(1, k) for k in range(2)] == [0.5, 8.5]
    assert joint_action(Steering(), bins=team.actions).actions == team.actions
    with pytest.raises(InvalidActionError, match="agent_1"):
        joint_action(Steering(), bins=2, log=[log[0] | {"agent_1": np.zeros(2)}])


def test_actions_are_checked() -> None:
    env = joint_action(Team())
    env.reset()
    with pytest.raises(ValueError, match="Slot 2 is 4, expected 0 to 3"):
        env.step(np.array([0, 1, 4]))

    class Continuous(Team):
        def action_space(self, agent: str) -> Any:
            return Box(0.0, 1.0, (1,))

    with pytest.raises(ValueError, match=r'bins of action\["agent_0"\]\[0\] \(slot'):
        joint_action(Continuous())
    assert joint_action(Continuous(), bins=3).nvec.tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match=r'action\["agent_0"\] to be a Discrete.*Text'):
        joint_action(Speaking())


def test_it_is_an_environment_of_gymnasium_and_d3rlpy() -> None:
    make: Any = lambda: joint_action(Team())  # noqa: E731
    gymnasium.register("test/team-v0", entry_point=make)
    env = gymnasium.make("test/team-v0")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert create_replay_buffer(env).size() == 0


class NeverEmpty(Team):
    """Keeps agents that have ended among its agents, as some environments do."""

    cuts = False

    def step(self, actions: dict[str, int]) -> Any:
        rewards = super().step(actions)[1]
        self.agents = list(self.possible_agents)
        none = dict.fromkeys(self.agents, False)
        ended = {agent: self._time >= self._number(agent) + 2 for agent in self.agents}
        return self._observe(), rewards, *((none, ended) if self.cuts else (ended, none)), {}


@pytest.mark.parametrize("cuts", [False, True])
def test_an_episode_ends_where_all_agents_have_ended_theirs(cuts: bool) -> None:
    team = NeverEmpty()
    team.cuts = cuts
    env = joint_action(team)
    for _ in range(2):
        env.reset(seed=0)
        steps = [env.step(np.array([1, 1, 1])) for _ in range(4)]
        assert [step[2:4] for step in steps] == [(False, False)] * 3 + [(not cuts, cuts)]
        masks = [step[4]["action_mask"][:, 1].tolist() for step in steps]
        assert masks == [[True] * 3, [False, True, True], [False, False, True], [False] * 3]
        assert [step[0][0] for step in steps] == [1.0, 2.0, 0.0, 0.0]  # its last one, then zeros


class Masked(Team):
    """Each agent may repeat no choice; where the masks are is `place`."""

    def __init__(self, place: str) -> None:
        super().__init__(actions=(4, 3, 4))
        self.place = place
        self.last: dict[str, int] = {}

    def observation_space(self, agent: str) -> Any:
        space = super().observation_space(agent)
        if self.place == "infos":
            return space
        mask = MultiBinary(self._actions[self._number(agent)])
        return gymnasium.spaces.Dict({"observation": space, "action_mask": mask})

    def mask(self, agent: str) -> Any:
        mask = np.ones(self._actions[self._number(agent)], np.int8)
        if agent in self.last:
            mask[self.last[agent] - 1] = 0
        return mask

    def both(self, observations: dict[str, Any]) -> Any:
        masks = {agent: {"action_mask": self.mask(agent)} for agent in observations}
        if self.place == "infos":
            return observations, masks
        return {a: {"observation": x, **masks[a]} for a, x in observations.items()}, {}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self.both(super().reset(seed, options)[0])

    def step(self, actions: dict[str, int]) -> Any:
        observations, *rest = super().step(actions)
        seen, infos = self.both(observations)
        return seen, *rest[:-1], infos


@pytest.mark.parametrize("place", ["infos", "observations"])
def test_masks_of_agents_are_the_joint_mask(place: str) -> None:
    env = joint_action(Masked(place))
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [[True] * 4, [True, True, True, False], [True] * 4]
    x, *_, info = env.step(np.array([0, 2, 3]))
    assert env.observation_space.contains(x)
    assert info["action_mask"].astype(int).tolist() == [[0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]
    *_, info = env.step(np.array([1, 0, 0]))  # the first agent leaves
    assert info["action_mask"].astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]


@pytest.mark.parametrize("mask", [[1, 1, 1], [1, 1, 1, 2], [[1, 1, 1]]])
def test_a_mask_of_another_shape_is_refused(mask: Any) -> None:
    team = Masked("infos")
    team.mask = lambda agent: mask  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r'mask of action\["agent_0"\] as 4 numbers 0 or 1'):
        joint_action(team).reset()


def test_an_agent_that_may_do_nothing_takes_its_first_choice() -> None:
    team = Masked("infos")
    team.mask = lambda agent: np.zeros(team._actions[int(agent[-1])])  # type: ignore[method-assign]
    _, info = joint_action(team).reset()
    assert info["action_mask"].astype(int).tolist() == [[1, 0, 0, 0]] * 3


class Several(Team):
    """Agents with several choices each, of other spaces; masks are in infos and observations."""

    last: dict[str, Any]

    spaces: tuple[Any, ...] = (
        MultiDiscrete([2, 3], start=[1, 0]),
        Dict({"arm": Tuple([Discrete(3), MultiBinary(2)])}),
        Discrete(3, start=-1),
    )

    def observation_space(self, agent: str) -> Any:
        mask = MultiBinary(3)
        space = super().observation_space(agent)
        return Dict({"x": space, "action_mask": mask}) if agent == "agent_2" else space

    def action_space(self, agent: str) -> Any:
        return self.spaces[self._number(agent)]

    def _observe(self) -> dict[str, Any]:
        seen = super()._observe()
        if "agent_2" in seen:
            seen["agent_2"] = {"x": seen["agent_2"], "action_mask": np.array([1, 1, 0], np.int8)}
        return seen

    def _infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {agent: {"time": self._time} for agent in self.agents}
        masks: dict[str, Any] = {
            "agent_0": ([0, 1], [1, 1, 1]),
            "agent_1": {"arm": (None, [1, 2])},
            "agent_2": [0, 1, 1],
        }
        for agent in infos:
            infos[agent]["action_mask"] = masks[agent]
        return infos

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed, options)[0], self._infos()

    def step(self, actions: dict[str, Any]) -> Any:
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action)
        self.last = actions
        rewards = dict.fromkeys(actions, 1.0)
        observations, _, *ends, _ = super().step(dict.fromkeys(actions, 0))
        self.last = actions
        return observations, rewards, *ends, self._infos()


def test_agents_may_have_several_choices_each() -> None:
    team: Any = Several((2, 4, 1))
    env = joint_action(team)
    assert env.actions.names == [
        *("agent_0/0", "agent_0/1", "agent_1/arm/0", "agent_1/arm/1/0", "agent_1/arm/1/1"),
        "agent_2",
    ]
    assert env.nvec.tolist() == [2, 3, 3, 2, 2, 3]
    x, info = env.reset(seed=0)
    masks = info["action_mask"].astype(int).tolist()
    assert masks == [[0, 1, 0], [1, 1, 1], [1, 1, 1], [0, 1, 0], [1, 1, 0], [0, 1, 0]]
    assert info["agents"]["agent_1"]["time"] == 0
    x, reward, *_, info = env.step(np.array([1, 2, 2, 1, 0, 1]))
    assert env.observation_space.contains(x)
    assert reward == 3.0
    assert info["agents"]["agent_2"]["time"] == 1
    assert team.last["agent_0"].tolist() == [2, 2]
    assert team.last["agent_1"]["arm"][0] == 2
    assert team.last["agent_1"]["arm"][1].tolist() == [1, 0]
    assert team.last["agent_2"] == 0
    *_, info = env.step(np.array([1, 2, 2, 1, 0, 1]))  # the first agent leaves
    masks = info["action_mask"].astype(int).tolist()
    assert masks[:3] == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]
    assert set(info["agents"]) == {"agent_1", "agent_2"}
    env.step(np.array([0, 0, 2, 1, 0, 1]))
    assert set(team.last) == {"agent_1", "agent_2"}
    layout: Any = env.layout
    layout.check(12, env.nvec.tolist())
    assert layout.slot_columns[:2] == ((0, 1, 2, 3),) * 2
    assert layout.slot_columns[5] == (8, 9, 10, 11)
    # Which kind of agent, then which of its slots.
    assert layout.slot_features[1] == (1, 0, 0, 0, 1, 0)
    assert layout.slot_features[4] == (0, 1, 0, 0, 0, 1)


def test_a_team_of_several_choices_each_is_learned_from() -> None:
    class Alike(Several):
        spaces = (MultiBinary(2), MultiDiscrete([2, 2]), Discrete(2))

        def _infos(self) -> dict[str, Any]:
            return {}

        def _observe(self) -> dict[str, Any]:
            return Team._observe(self)

        def observation_space(self, agent: str) -> Any:
            return Team.observation_space(self, agent)

    env = joint_action(Alike((2, 3, 1)))
    rng = np.random.default_rng(0)
    # An agent that has left may take choice 0 only.
    choose = lambda _, mask: (mask[:, 1] & (rng.random(5) < 0.9)).astype(int)  # noqa: E731
    buffer = collect(env, choose, 4, progress=False, with_masks=True)
    assert buffer.layout is not None
    assert buffer.layout.has_features
    algo = FactoredBC()
    algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    observation, info = env.reset(seed=0)
    (action,) = algo.predict_masked(observation[None], info["action_mask"])
    assert env.action_space.contains(action)


@pytest.mark.slow
def test_particles_spread_out() -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    env = joint_action(spread.parallel_env(N=5, max_cycles=25))
    x, _ = env.reset(seed=0)
    assert x.shape == env.observation_space.shape
    total, truncated = 0.0, False
    while not truncated:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not terminated
        total += reward
    assert total < 0
