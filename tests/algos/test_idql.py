"""The best of several samples, of a structure model's joint distribution and of other policies."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy import (
    BC,
    SAINTIDQL,
    SPINBC,
    SPINIDQL,
    AutoregressiveBC,
    AutoregressiveIDQL,
    FactoredBC,
    FactoredIDQL,
    FactoredIQL,
    load_policy,
    relabel,
    save_policy,
)
from spin_d3rlpy.asm import MLPConfig, PretrainingConfig
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.critics.joint import JointCritic
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.errors import NoAllowedChoiceError
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies import SPINJoint
from spin_d3rlpy.policies.joint import JointPolicy
from tests.algos.problems import NVEC, OBSERVATION_SIZE, new_algorithm, random_buffer, tiny_fields
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
STATES = np.random.default_rng(3).normal(size=(6, OBSERVATION_SIZE)).astype(np.float32)


def two_modes(n: int = 4000) -> DeviceReplayBuffer:
    """One-step decisions: both slots the same, or (rarely) not, and only the former pays."""
    rng = np.random.default_rng(0)
    first = rng.integers(2, size=n)
    same = rng.random(n) < 0.9
    actions = np.stack([first, np.where(same, first, 1 - first)], axis=1)
    rewards = np.asarray(actions[:, 0] == actions[:, 1], dtype=np.float32)
    observations = rng.normal(size=(2 * n, 3)).astype(np.float32)
    ends = np.ones(n, dtype=np.float32)
    data = StackedEpisodes(observations, actions.astype(np.int8), rewards, ends, [1] * n, [2, 2])
    return DeviceReplayBuffer(data)


def trained(
    algo_class: Any, buffer: DeviceReplayBuffer, n_steps: int = 300, /, **fields: Any
) -> Any:
    torch.manual_seed(0)
    algo = new_algorithm(algo_class, batch_size=64, critic_learning_rate=3e-3, **fields)
    algo.fit(buffer, n_steps=n_steps, **QUIET)
    return algo


def joint_fields() -> dict[str, Any]:
    config = PretrainingConfig(
        masking="any_order", batch_size=256, max_updates=200, learning_rate=5e-3
    )
    return {"architecture": "mlp", "mlp": MLPConfig(width=32), "pretraining": config}


@functools.cache
def best_of_sixteen() -> Any:
    """An algorithm that takes the best of 16 samples; tests leave it as it is."""
    return trained(SPINIDQL, two_modes(), n_action_samples=16, joint_critic=True, **joint_fields())


@pytest.mark.parametrize("joint_critic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_choices_that_go_together_are_sampled_together(joint_critic: bool) -> None:
    buffer = two_modes()
    fields = {**joint_fields(), "joint_critic": joint_critic}
    algo = trained(SPINIDQL, buffer, 10, n_action_samples=1, **fields)  # pre-training tells
    states = buffer.observations[:500].numpy()
    sampled = algo.sample_action(states)
    agree = (sampled[:, 0] == sampled[:, 1]).mean()
    assert 0.85 < agree < 0.95  # as in the data
    assert 0.3 < sampled[:, 0].mean() < 0.7  # both of the good actions
    product = trained(FactoredIDQL, buffer, 100, n_action_samples=1, actor_learning_rate=3e-3)
    sampled = product.sample_action(states)
    assert 0.3 < (sampled[:, 0] == sampled[:, 1]).mean() < 0.7


@pytest.mark.parametrize(
    "algo_class", [SAINTIDQL, pytest.param(AutoregressiveIDQL, marks=pytest.mark.slow)]
)
def test_other_policies_propose_and_the_critics_choose(algo_class: Any) -> None:
    fields = tiny_fields(algo_class) | {"actor_learning_rate": 3e-3, "n_action_samples": 16}
    algo = trained(algo_class, two_modes(), joint_critic=True, **fields)
    states = np.random.default_rng(4).normal(size=(200, 3)).astype(np.float32)
    actions = algo.predict(states)
    assert np.mean(actions[:, 0] == actions[:, 1]) > 0.97
    # Both ways of being the same are in the data, and are imitated.
    assert 0.2 < algo.sample_action(states)[:, 0].mean() < 0.8


def test_a_joint_critic_values_what_no_sum_of_parts_does() -> None:
    buffer, joint = two_modes(), best_of_sixteen()
    states = buffer.observations[:200].numpy()
    values = [
        joint.predict_value(states, np.tile(action, (200, 1))).mean()
        for action in ([0, 0], [1, 1], [0, 1], [1, 0])
    ]
    assert min(values[:2]) > max(values[2:]) + 0.5
    chosen = joint.predict(states)
    assert (chosen[:, 0] == chosen[:, 1]).all()


def test_several_candidates_have_the_values_of_each() -> None:
    torch.manual_seed(0)
    slot_layout = SlotLayout(NVEC)
    algo = new_algorithm(FactoredIQL, joint_critic=True, **tiny_fields(FactoredIQL))
    algo.build_with_dataset(random_buffer())
    critic = cast(Any, algo.impl).q_function
    assert isinstance(critic, JointCritic)
    x = torch.from_numpy(STATES)
    actions = torch.stack([torch.randint(m, (4, 6)) for m in NVEC], -1)  # (A, B, N)
    values = critic.q_values(slot_layout, x, actions)
    assert values.shape == (2, 4, 6)
    for k in range(4):
        torch.testing.assert_close(values[:, k], critic.q_values(slot_layout, x, actions[k]))


def test_predict_takes_the_best_candidate_and_is_a_function() -> None:
    algo = new_algorithm(SPINIDQL, **{**tiny_fields(SPINIDQL), "n_action_samples": 8})
    algo.fit(random_buffer(), n_steps=3, **QUIET)
    assert np.array_equal(algo.predict(STATES), algo.predict(STATES))
    assert np.array_equal(algo.predict(STATES)[:2], algo.predict(STATES[:2]))
    impl: Any = algo.impl
    inputs = algo.config.observation_scaler
    x = torch.from_numpy(STATES) if inputs is None else inputs.transform(torch.from_numpy(STATES))
    candidates = impl.policy.sample_several(x, 8, impl._candidate_noise)
    q = torch.stack([impl.q_values(impl.q_function, x, a).amin(0) for a in candidates])
    best = torch.stack([candidates[q[:, b].argmax(), b] for b in range(len(x))])
    assert np.array_equal(algo.predict(STATES), best.detach().numpy())


def test_a_temperature_spreads_sampled_actions() -> None:
    fields = tiny_fields(FactoredIDQL)
    draws = []
    for temperature in (0.0, 1e6):
        torch.manual_seed(0)
        algo = new_algorithm(
            FactoredIDQL, **fields, n_action_samples=64, value_temperature=temperature
        )
        algo.fit(random_buffer(), n_steps=2, **QUIET)
        states = np.repeat(STATES[:1], 100, 0)
        draws.append(len({tuple(a) for a in algo.sample_action(states).tolist()}))
    assert draws[0] < draws[1] / 2


def test_candidates_of_temperature_zero_are_the_greedy_action() -> None:
    torch.manual_seed(0)
    algo = new_algorithm(SPINIDQL, **tiny_fields(SPINIDQL), candidate_temperature=0.0)
    algo.fit(random_buffer(), n_steps=2, **QUIET)
    impl: Any = algo.impl
    scaler = algo.config.observation_scaler
    x = torch.from_numpy(STATES)
    greedy = impl.policy.greedy(x if scaler is None else scaler.transform(x)).numpy()
    for actions in (algo.predict(STATES), algo.sample_action(STATES), algo.predict_with(STATES)):
        assert np.array_equal(actions, greedy)
    impl._config.candidate_temperature = 1.0
    assert not np.array_equal(algo.predict(STATES), greedy)
    with pytest.raises(ValueError, match="candidate_temperature"):
        SPINIDQL(candidate_temperature=-1.0)


def test_joint_log_prob_and_greedy_follow_the_slots() -> None:
    torch.manual_seed(0)
    policy = JointPolicy(4, NVEC, MLPConfig(width=16))
    x = torch.randn(5, 4)
    greedy = policy.greedy(x)
    expected = policy.asm.sample(x, temperature=0.0, order=(0, 1, 2))[0]
    assert torch.equal(greedy, expected)
    torch.testing.assert_close(
        policy.log_prob(x, greedy),
        sum(
            policy.slot_layout.split(
                policy.asm(x, torch.cat([greedy[:, :i], torch.tensor(NVEC[i:]).expand(5, -1)], 1))
            )
            .log_softmax(-1)[:, i]
            .gather(1, greedy[:, i : i + 1])[:, 0]
            for i in range(3)
        ),
    )


def test_nothing_of_the_model_is_trained_further(tmp_path: Path) -> None:
    algo: Any = new_algorithm(SPINIDQL, **tiny_fields(SPINIDQL))
    algo.pretrain(random_buffer(), show_progress=False, logger_adapter=NoopAdapterFactory())
    before = {k: v.clone() for k, v in algo.asm.state_dict().items()}
    metrics = algo.fit(random_buffer(), n_steps=3, **QUIET)[-1][1]
    assert "actor_loss" not in metrics
    algo.config.imitation_batch_size = 64
    assert algo.batch_source(random_buffer()).sample_transition_batch(8).imitation is None
    after = algo.policy.asm.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())
    with pytest.raises(ValueError, match="Nothing of a JointPolicy is trained"):
        _ = algo.impl.policy_optim
    save_policy(algo, tmp_path / "p.safetensors")
    assert np.array_equal(
        load_policy(tmp_path / "p.safetensors").predict(STATES), algo.predict(STATES)
    )


def test_objectives_that_train_their_policy_refuse_it() -> None:
    algo = BC(policy=SPINJoint(architecture="mlp"))
    with pytest.raises(ValueError, match=r"trains its policy.*JointPolicy.*IDQL"):
        algo.fit(random_buffer(), n_steps=1, **QUIET)


@pytest.mark.slow
def test_a_student_learns_the_chosen_actions(tmp_path: Path) -> None:
    buffer = two_modes()
    teacher = copy.deepcopy(best_of_sixteen())
    taught = relabel(buffer, teacher)
    states = buffer.observations[buffer.observation_index].numpy()
    assert np.array_equal(taught.actions[:50].numpy(), teacher.predict(states[:50]))
    assert torch.equal(taught.observations, buffer.observations)
    assert taught.actions.dtype == buffer.actions.dtype
    student = FactoredBC(batch_size=256, actor_learning_rate=3e-3)
    student.fit(taught, n_steps=600, **QUIET)
    states = states[:300]
    assert (student.predict(states) == teacher.predict(states)).all(1).mean() > 0.8  # by chance 0.5
    student.save_policy(path := str(tmp_path / "student.onnx"))
    assert np.array_equal(exported_actions(path, observations=states), student.predict(states))
    spin = new_algorithm(SPINBC, asm=teacher.asm, architecture="mlp", mlp=MLPConfig(width=32))
    spin.fit(taught, n_steps=2, **QUIET)  # heads on the same model


class RuledTeacher:
    """Scores choices by the state, one after the other, and takes none twice."""

    def predict(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        weights = np.random.default_rng(1).normal(size=(OBSERVATION_SIZE, 3, 4))
        scores = np.einsum("bo,onk->bnk", x, weights)
        chosen = []
        for slot in range(3):
            chosen.append(scores[:, slot].argmax(1))
            scores[np.arange(len(x)), :, chosen[-1]] = -np.inf
        return np.stack(chosen, axis=1)


@pytest.mark.parametrize("algo_class", [SPINBC, AutoregressiveBC, FactoredBC])
def test_a_student_of_a_rule_abiding_teacher_keeps_the_rule_if_asked_to(algo_class: Any) -> None:
    taught = relabel(random_buffer([4, 4, 4]), teacher := RuledTeacher())
    torch.manual_seed(0)
    student = new_algorithm(algo_class, **{**tiny_fields(algo_class), "actor_learning_rate": 3e-3})
    student.fit(taught, n_steps=100, **QUIET)
    states = np.random.default_rng(2).normal(size=(1000, OBSERVATION_SIZE)).astype(np.float32)

    def broken(actions: np.ndarray[Any, Any]) -> int:
        return sum(len(set(action)) < 3 for action in actions.tolist())

    assert broken(teacher.predict(states)) == 0
    plain, ruled = student.predict(states), student.predict_with(states, allowed=all_different(4))
    assert broken(plain) > 0  # imitation alone does not keep it
    assert broken(ruled) == 0
    kept = [len(set(action)) == 3 for action in plain.tolist()]
    assert np.array_equal(ruled[kept], plain[kept])
    assert np.array_equal(student.predict_with(states), plain)
    given = np.tile([-1, 2, -1], (1000, 1))
    finished = student.predict_with(states, given, all_different(4))
    assert (finished[:, 1] == 2).all()
    assert broken(finished) == 0
    with pytest.raises(NoAllowedChoiceError):
        student.predict_with(states, allowed=np.zeros((3, 4), bool))


def test_conditions_that_were_not_in_the_data_are_kept() -> None:
    buffer, algo = two_modes(), best_of_sixteen()
    states = buffer.observations[:100].numpy()
    given = np.tile([-1, 1], (100, 1))
    assert (algo.predict_with(states, given) == [1, 1]).all()  # the later slot decides the first
    different = algo.predict_with(states, allowed=all_different(2))
    assert (different.sum(1) == 1).all()
    mask = np.array([[True, True], [False, True]])
    for allowed in (mask, mask.tolist(), torch.from_numpy(mask)):
        assert (algo.predict_with(states, allowed=allowed)[:, 1] == 1).all()
    assert (algo.predict_with(states, given.tolist()) == [1, 1]).all()
    with pytest.raises(NoAllowedChoiceError):
        algo.predict_with(states, allowed=np.zeros((2, 2), bool))
    with pytest.raises(ValueError, match="a mask or a rule"):
        algo.predict_with(states, allowed=cast(Any, "all"))
    assert np.array_equal(algo.predict_with(states), algo.predict(states))
    other = new_algorithm(FactoredIDQL, **tiny_fields(FactoredIDQL))
    other.build_with_dataset(random_buffer())
    with pytest.raises(ValueError, match="FactoredPolicy cannot choose in view of"):
        other.predict_with(STATES)


def test_all_layers_of_a_joint_critic_drop_out_in_training() -> None:
    torch.manual_seed(0)
    critic = JointCritic((3,), VectorEncoderFactory(hidden_units=[32]), [3, 2], n_critics=1)
    q, seen = critic.members[0], []
    q.encoder.register_forward_hook(lambda _, x, y: seen.append(x[0]))
    q.head.register_forward_hook(lambda _, x, y: seen.append(x[0]))
    x, actions = torch.randn(200, 3), torch.randint(2, (200, 2))
    layout = SlotLayout([3, 2])

    def zeros() -> list[float]:
        seen.clear()
        critic.standardized(layout, x, actions)
        return [float((layer == 0.0).float().mean()) for layer in seen]

    before = zeros()
    critic.drop_out(0.5)
    for less, more in zip(before, zeros(), strict=True):
        assert more == pytest.approx(less + 0.5 * (1.0 - less), abs=0.05)
    critic.eval()
    assert zeros() == before


@pytest.mark.slow
def test_nothing_drops_out_where_critics_decide_or_are_judged() -> None:
    buffer = two_modes()
    fields = {"held_out_share": 0.2, "search_sweeps": 1, "joint_critic": True}
    algo = trained(SPINIDQL, buffer, **fields, **joint_fields())
    impl, x = algo.impl, buffer.observations[:64]
    batch = algo.scale(buffer.transitions(torch.arange(64)))
    judges: list[Callable[[], Any]] = [
        lambda: impl.measure_trust(x, x).searches,
        lambda: impl.temporal_difference_errors(batch).tolist(),
        lambda: algo.predict_with(x.numpy()).tolist(),
        lambda: algo.predict(x.numpy()).tolist(),
    ]
    for judge in judges:
        impl.modules.set_train()  # as an update leaves it
        impl.dropout_rate = 0.5
        first = judge()
        assert not impl.modules.q_funcs.training
        impl.modules.set_train()
        assert judge() == first  # with other random numbers
