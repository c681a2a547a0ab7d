"""Fitted Q evaluation against exact values, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import d3rlpy
import numpy as np
import pytest
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import FactoredBC, MultiDiscreteFQE, MultiDiscreteFQEConfig
from spin_d3rlpy.errors import NotConvergedError
from tests.algos.problems import new_algorithm, tiny_fields

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
NVEC = [3, 2]
N_ACTIONS = 6


@dataclasses.dataclass(frozen=True)
class Chain:
    """A random decision process of few states, logged by a random policy."""

    dataset: Any
    states: np.ndarray
    best: np.ndarray  # actions (S, N) of the evaluated policy
    log_value: float
    policy_value: float

    def act(self, x: np.ndarray) -> np.ndarray:
        nearest = ((x[:, None] - self.states) ** 2).sum(2).argmin(1)
        chosen: np.ndarray = self.best[nearest]
        return chosen


def chain(gamma: float, mean_reward: float, n_states: int = 6, steps: int = 4000) -> Chain:
    rng = np.random.default_rng(0)
    moves = rng.dirichlet(np.full(n_states, 0.2), size=(n_states, N_ACTIONS))
    paid = rng.normal(size=(n_states, N_ACTIONS)) + mean_reward
    logged = rng.dirichlet(np.ones(N_ACTIONS), size=n_states)
    best = paid.argmax(1)

    def value(policy: np.ndarray) -> float:
        moving = np.einsum("sa,sat->st", policy, moves)
        solved = np.linalg.solve(np.eye(n_states) - gamma * moving, (policy * paid).sum(1))
        return float(solved[0])

    states = rng.normal(size=(n_states, 4)).astype(np.float32)
    rows, state = [], 0
    for step in range(steps):
        state = 0 if step % 100 == 0 else state
        action = rng.choice(N_ACTIONS, p=logged[state])
        rows.append((state, action, paid[state, action]))
        state = rng.choice(n_states, p=moves[state, action])
    visited, actions, rewards = (np.array(part) for part in zip(*rows, strict=True))
    dataset = d3rlpy.dataset.MDPDataset(
        states[visited],
        np.stack(np.divmod(actions, 2), axis=1),
        rewards.astype(np.float32)[:, None],
        np.zeros(steps, np.float32),
        (np.arange(steps) % 100 == 99).astype(np.float32),
        action_space=d3rlpy.ActionSpace.DISCRETE,
    )
    pairs = np.stack(np.divmod(best, 2), axis=1)
    return Chain(dataset, states, pairs, value(logged), value(np.eye(N_ACTIONS)[best]))


def evaluated(problem: Chain, gamma: float, n_steps: int, **config: Any) -> MultiDiscreteFQE:
    d3rlpy.seed(0)
    fields: dict[str, Any] = {"batch_size": 128, "nvec": NVEC, "gamma": gamma} | config
    fqe = MultiDiscreteFQE(problem.act, MultiDiscreteFQEConfig(**fields))
    fqe.fit(problem.dataset, n_steps=n_steps, **QUIET)
    return fqe


@pytest.mark.parametrize(
    ("gamma", "mean_reward"), [pytest.param(0.9, 0.0, marks=pytest.mark.slow), (0.95, -25.0)]
)
def test_values_of_a_policy_and_of_the_log_are_the_exact_ones(
    gamma: float, mean_reward: float
) -> None:
    problem = chain(gamma, mean_reward)
    fqe = evaluated(problem, gamma, n_steps=700)
    assert fqe.log_check is not None
    assert fqe.log_check.holds
    spread = abs(problem.policy_value - problem.log_value)
    assert fqe.log_check.estimated == pytest.approx(problem.log_value, abs=0.15 * spread)
    (found,) = fqe.predict_value(problem.states[:1], problem.best[:1])
    assert found == pytest.approx(problem.policy_value, abs=0.15 * spread)


def test_values_that_have_not_converged_are_refused() -> None:
    problem = chain(0.99, -25.0)
    # As before this was known: from zero, in steps that are far too few.
    short = evaluated(problem, 0.99, n_steps=20, monte_carlo_share=0.0, learning_rate=1e-5)
    impl: Any = short.impl
    for critic in (impl.modules.q_funcs, impl.modules.log_q_funcs):
        for q in critic.members:
            q.scale.mean.zero_()  # values near zero, where the log's are -2500
    short.log_check = short._compare_with_log(short._log)
    assert "logging policy is evaluated at" in str(short.log_check)
    with pytest.raises(NotConvergedError, match=r"not to be believed.*more steps"):
        short.predict_value(problem.states[:1], problem.best[:1])


def test_a_policy_whose_values_are_still_moving_is_refused() -> None:
    problem = chain(0.99, 0.0)
    fqe = evaluated(problem, 0.99, n_steps=100)
    assert fqe.log_check is not None
    assert abs(fqe.log_check.estimated - fqe.log_check.observed) < fqe.log_check.tolerance
    with pytest.raises(NotConvergedError, match="where they settle"):
        fqe.predict_value(problem.states[:1], problem.best[:1])
    unchecked = MultiDiscreteFQE(
        problem.act, MultiDiscreteFQEConfig(nvec=NVEC, batch_size=32), check=False
    )
    unchecked.fit(problem.dataset, n_steps=2, **QUIET)
    assert unchecked.predict_value(problem.states[:1], problem.best[:1]).shape == (1,)


def test_a_fixed_policy_acts_once_in_each_state_and_a_random_one_each_time() -> None:
    problem = chain(0.9, 0.0, steps=300)
    asked: list[int] = []

    def fixed(x: np.ndarray) -> np.ndarray:
        asked.append(len(x))
        return problem.act(x)

    def fit(policy: Any) -> int:
        asked.clear()
        d3rlpy.seed(0)
        fqe = MultiDiscreteFQE(policy, MultiDiscreteFQEConfig(nvec=NVEC, batch_size=64))
        fqe.fit(problem.dataset, n_steps=50, **QUIET)
        return sum(asked)

    n_states = 303  # three last ones among them
    assert fit(fixed) < 2 * n_states  # two trials, and states twice in one batch
    rng = np.random.default_rng(0)

    def random(x: np.ndarray) -> np.ndarray:
        asked.append(len(x))
        return rng.integers(NVEC, size=(len(x), 2))

    assert fit(random) >= 50 * 64


def test_an_algorithms_actions_are_kept_only_where_they_are_always_the_same() -> None:
    problem = chain(0.9, 0.0, steps=300)
    algo = new_algorithm(FactoredBC, **tiny_fields(FactoredBC), nvec=NVEC)
    algo.fit(problem.dataset, n_steps=2, **QUIET)
    modes: list[tuple[Any, bool]] = [("greedy", True), ("sample", False)]
    for mode, kept in modes:
        fqe = MultiDiscreteFQE(algo, MultiDiscreteFQEConfig(batch_size=32), mode=mode)
        fqe.fit(problem.dataset, n_steps=3, **QUIET)
        impl: Any = fqe.impl
        assert (impl._known is not None) == kept
        if kept:
            rows = (impl._known[:, 0] >= 0).nonzero()[:, 0]
            states = fqe._log.observations[rows].numpy()
            assert np.array_equal(impl._known[rows].numpy(), algo.predict(states))
