from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.models.encoders import SimBaEncoderFactory
from numpy.typing import NDArray

from examples.behavior_policies.export import policy_arrays
from examples.behavior_policies.shipped import learning_curve
from spin_d3rlpy.algos.decqn import DecQN, DecQNConfig
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler
from spin_envs.behavior import (
    BehaviorPolicy,
    load_behavior_policy,
    policy_name,
    policy_task,
    shipped_policies,
)
from spin_envs.tasks import BenchmarkTask

# Unequal primes: no transposed axis passes.
OBSERVATION_SIZE, WIDTH, HIDDEN, N_CRITICS, BATCH = 5, 7, 11, 3, 13
NVEC = [2, 5, 3]


def tiny_decqn(n_blocks: int) -> DecQN:
    """A DecQN whose weights are all random and of the precision that files keep."""
    rng = np.random.default_rng(0)
    config = DecQNConfig(
        nvec=NVEC,
        n_critics=N_CRITICS,
        encoder_factory=SimBaEncoderFactory(
            feature_size=WIDTH, hidden_size=HIDDEN, n_blocks=n_blocks
        ),
        observation_scaler=ClippedStandardObservationScaler(
            mean=rng.normal(size=OBSERVATION_SIZE).astype(np.float32),
            std=rng.uniform(0.1, 2.0, OBSERVATION_SIZE).astype(np.float32),
            clip=1.5,
        ),
    )
    algo = DecQN(config)
    algo.create_impl((OBSERVATION_SIZE,), len(NVEC))
    assert algo.impl is not None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in algo.impl.q_function.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator).half().float())
    return algo


def arrays_of(algo: DecQN) -> dict[str, NDArray[Any]]:
    """The greedy policy of its online networks."""
    scaler = algo.config.observation_scaler
    assert algo.impl is not None
    assert isinstance(scaler, ClippedStandardObservationScaler)
    return policy_arrays([(m.encoder, m.head) for m in algo.impl.q_function], NVEC, scaler)


def random_observations() -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    return rng.normal(0, 2, (BATCH, OBSERVATION_SIZE)).astype(np.float32)


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_utilities_are_those_of_the_torch_networks(n_blocks: int) -> None:
    algo, observations = tiny_decqn(n_blocks), random_observations()
    assert algo.impl is not None
    scaler = algo.config.observation_scaler
    assert scaler is not None
    scaled = scaler.transform(torch.from_numpy(observations))
    assert (scaled.abs() == 1.5).any(), "the clipping must be at work"
    members: list[Any] = list(algo.impl.q_function.double())
    with torch.no_grad():
        outputs = torch.stack([m.head(m.encoder(scaled.double())) for m in members])
    expected = outputs.mean(0).numpy()

    utilities = BehaviorPolicy(arrays_of(algo), {}).utilities(observations)

    assert utilities.shape == (BATCH, sum(NVEC))
    np.testing.assert_allclose(utilities, expected, rtol=1e-5, atol=1e-5)


def test_actions_are_the_greedy_ones_of_ragged_slots() -> None:
    algo, observations = tiny_decqn(1), random_observations()
    policy = BehaviorPolicy(arrays_of(algo), {})
    actions = policy(observations)
    assert actions.shape == (BATCH, len(NVEC))
    assert actions.dtype == np.int64
    np.testing.assert_array_equal(actions, algo.predict(observations))
    assert (actions.max(0) < NVEC).all()
    assert actions[:, 1].max() > 2, "the wide slot must use its extra choices"


def test_other_choices_than_the_networks_have_are_nearest_to_the_mean() -> None:
    arrays, observations = arrays_of(tiny_decqn(1)), random_observations()
    utilities = torch.from_numpy(BehaviorPolicy(arrays, {}).utilities(observations))
    policy = BehaviorPolicy(
        {**arrays, "nvec": np.array([7, 3, 30]), "head_nvec": arrays["nvec"]}, {}
    )
    assert policy.nvec.tolist() == [7, 3, 30]
    for i, logits in enumerate(utilities.split(NVEC, dim=1)):
        probs = logits.softmax(1).numpy()
        mean = (probs * np.linspace(-1, 1, NVEC[i])).sum(1)
        distances = np.abs(np.linspace(-1, 1, policy.nvec[i]) - mean[:, None])
        np.testing.assert_array_equal(policy(observations)[:, i], distances.argmin(1))


def test_networks_with_other_encoders_are_refused() -> None:
    algo = DecQN(nvec=NVEC)
    algo.create_impl((OBSERVATION_SIZE,), len(NVEC))
    algo.config.observation_scaler = ClippedStandardObservationScaler(
        mean=np.zeros(OBSERVATION_SIZE), std=np.ones(OBSERVATION_SIZE)
    )
    with pytest.raises(ValueError, match="SimBaEncoder, got VectorEncoder"):
        arrays_of(algo)


def test_one_observation_gives_the_same_as_a_batch() -> None:
    policy, observations = BehaviorPolicy(arrays_of(tiny_decqn(1)), {}), random_observations()
    alone = np.concatenate([policy(observations[i : i + 1]) for i in range(BATCH)])
    np.testing.assert_array_equal(alone, policy(observations))


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policies").mkdir()
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
    return tmp_path / "policies"


def test_a_shipped_policy_is_loaded_with_its_record(shipped: Path) -> None:
    arrays = arrays_of(tiny_decqn(1))
    name = policy_name(BenchmarkTask("cheetah-run", 3), "expert")
    np.savez_compressed(shipped / f"{name}.npz", allow_pickle=False, **arrays)
    (shipped / f"{name}.json").write_text(json.dumps({"mean_return": 1.5}))

    assert shipped_policies() == ["cheetah-run-b3-expert"]
    policy = load_behavior_policy(name)
    assert policy.record == {"mean_return": 1.5}
    observations = random_observations()
    np.testing.assert_array_equal(policy(observations), BehaviorPolicy(arrays, {})(observations))


def test_an_unknown_policy_is_an_error_that_lists_the_shipped_ones(shipped: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"'walker-b3-best'. Shipped: none"):
        load_behavior_policy("walker-b3-best")
    for name in ("fish-swim-b3-medium", "cheetah-run-b3-medium"):
        (shipped / f"{name}.npz").touch()
    with pytest.raises(FileNotFoundError, match="cheetah-run-b3-medium, fish-swim-b3-medium"):
        load_behavior_policy("walker-b3-best")


def test_pickled_arrays_are_refused(shipped: Path) -> None:
    np.savez(shipped / "bad.npz", nvec=np.array([{}], dtype=object))
    (shipped / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_behavior_policy("bad")


@pytest.mark.parametrize("name", shipped_policies())
def test_every_shipped_policy_acts_in_its_environment(name: str) -> None:
    policy = load_behavior_policy(name)
    record = policy.record
    task = policy_task(name)
    assert name == policy_name(task, record["level"])
    assert {"task": task.task, **task.env_kwargs}.items() <= record.items()
    curve = learning_curve(name)
    assert curve.shape[1] == 3
    assert (np.diff(curve[:, 0]) > 0).all()
    assert curve[-1, 0] == record["env_steps"]
    env = gymnasium.make(task.env_id, **task.env_kwargs)
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(policy(observation[None])[0])


@pytest.mark.parametrize("bins", [10, 30])
@pytest.mark.parametrize("level", ["medium", "expert"])
def test_dogs_with_more_bins_take_those_between_the_learned_three(bins: int, level: str) -> None:
    policy = load_behavior_policy(f"dog-trot-b{bins}-{level}")
    env = gymnasium.make("spin/dog-trot-v0", bins=bins)
    observation, _ = env.reset(seed=0)
    actions = []
    for _ in range(60):
        actions.append(policy(observation[None])[0])
        observation, *_ = env.step(actions[-1])
    shares = np.bincount(np.concatenate(actions), minlength=bins) / (60 * 38)
    assert (shares > 0).all()
    middle = (bins - 1) // 2
    assert shares[[0, middle, middle + 1, bins - 1]].sum() < 0.8
