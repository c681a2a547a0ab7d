"""d3rlpy's own verbs, on every algorithm: what its `algo_tester` covers, and a little more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.algos.qlearning.explorers import ConstantEpsilonGreedy
from d3rlpy.logging import (
    CombineAdapterFactory,
    FileAdapterFactory,
    NoopAdapterFactory,
    TensorboardAdapterFactory,
)
from d3rlpy.metrics import (
    DiscreteActionMatchEvaluator,
    InitialStateValueEstimationEvaluator,
)
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.ope import DiscreteFQE, FQEConfig
from d3rlpy.preprocessing import (
    ClipRewardScaler,
    MinMaxObservationScaler,
    MinMaxRewardScaler,
    StandardObservationScaler,
    StandardRewardScaler,
)

import spin_d3rlpy
from spin_d3rlpy import (
    SPINIDQL,
    SPINIQL,
    DecQN,
    FactoredBC,
    FactoredIQL,
    LockstepEvaluator,
    MultiDiscreteActionMatchEvaluator,
    MultiDiscreteEpsilonGreedy,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
    SPINDistillIQL,
    create_replay_buffer,
)
from spin_d3rlpy.algos.bc import BCImpl
from spin_d3rlpy.errors import InvalidActionSpaceError, NvecMismatchError
from tests.algos.problems import (
    ALGORITHMS,
    NVEC,
    OBSERVATION_SIZE,
    SignEnv,
    each_algorithm,
    has_field,
    learning_rates,
    new_algorithm,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)
from tests.exported_files import exported_actions
from tests.subprocesses import run_python

CRITICS = [a for a in ALGORITHMS if has_field(a, "n_critics")]
POLICIES = [a for a in ALGORITHMS if a.__name__ not in ("DecQN", "DecQNCQL")]
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
OBSERVATIONS = np.random.default_rng(2).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)


def make(algo_class: Any, seed: int = 1, **fields: Any) -> Any:
    d3rlpy.seed(seed)
    return new_algorithm(algo_class, **{"batch_size": 19, **tiny_fields(algo_class), **fields})


def built(algo_class: Any, seed: int = 1, **fields: Any) -> Any:
    algo = make(algo_class, seed, **fields)
    algo.build_with_dataset(random_buffer())
    return algo


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], prefix: str = "") -> bool:
    keys = [k for k in one if k.startswith(prefix)]
    assert keys
    return all(torch.equal(one[k], other[k]) for k in keys)


# -- building and fitting --------------------------------------------------------------------


@pytest.mark.parametrize("scaler", [StandardObservationScaler, MinMaxObservationScaler])
@pytest.mark.parametrize("reward_scaler", [StandardRewardScaler, MinMaxRewardScaler])
@pytest.mark.parametrize("algo_class", [FactoredIQL, spin_d3rlpy.SPINBCQ, DecQN])
def test_scalers_are_fitted_to_the_dataset(
    algo_class: Any, scaler: Any, reward_scaler: Any
) -> None:
    algo = make(algo_class, observation_scaler=scaler(), reward_scaler=reward_scaler())
    algo.fit(random_buffer(), n_steps=2, **QUIET)
    assert algo.observation_scaler.built
    assert algo.reward_scaler.built
    states = random_buffer().observations
    expected = states.mean(0) if scaler is StandardObservationScaler else states.amin(0)
    scaled = algo.observation_scaler.transform(expected[None])
    target = 0.0 if scaler is StandardObservationScaler else -1.0
    torch.testing.assert_close(scaled, torch.full_like(scaled, target), rtol=0, atol=1e-5)


def test_clipped_rewards_reach_the_update() -> None:
    algo = built(FactoredIQL, reward_scaler=ClipRewardScaler(0.0, 0.0, 1.0))
    plain = built(FactoredIQL)
    batch = random_buffer().sample_transition_batch(19)
    assert algo.update(batch)["critic_loss"] < plain.update(batch)["critic_loss"]


def test_logs_reach_every_adapter(tmp_path: Path) -> None:
    factory = CombineAdapterFactory(
        [
            FileAdapterFactory(str(tmp_path / "files")),
            TensorboardAdapterFactory(str(tmp_path / "board")),
            NoopAdapterFactory(),
        ]
    )
    for algo_class in (spin_d3rlpy.SPINIQL, DecQN):
        algo = make(algo_class)
        algo.fit(
            random_buffer(),
            n_steps=2,
            logger_adapter=factory,
            experiment_name=algo_class.__name__,
            with_timestamp=False,
            show_progress=False,
        )
        assert (tmp_path / "files" / algo_class.__name__ / "model_2.d3").exists()
        assert list((tmp_path / "board" / "runs" / algo_class.__name__).iterdir())


# -- saving ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fresh_process_that_imports_the_package_loads_every_algorithm(tmp_path: Path) -> None:
    np.save(tmp_path / "observations.npy", OBSERVATIONS)
    for algo_class in ALGORITHMS:
        algo = built(algo_class, observation_scaler=StandardObservationScaler())
        algo.save(str(tmp_path / f"{algo_class.__name__}.d3"))
        np.save(tmp_path / f"{algo_class.__name__}.npy", algo.predict(OBSERVATIONS))
    loaded = run_python(
        "import pathlib, sys\n"
        "import numpy as np\n"
        "import d3rlpy, spin_d3rlpy\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "x = np.load(folder / 'observations.npy')\n"
        "for path in sorted(folder.glob('*.d3')):\n"
        "    algo = d3rlpy.load_learnable(str(path))\n"
        "    assert type(algo) is getattr(spin_d3rlpy, path.stem)\n"
        "    assert (algo.predict(x) == np.load(path.with_suffix('.npy'))).all(), path\n"
        "    print(path.stem)",
        str(tmp_path),
    )
    assert set(loaded.split()) >= {a.__name__ for a in ALGORITHMS}


@each_algorithm
def test_types_start_alike_and_configs_are_public(algo_class: Any) -> None:
    config_class = algo_class.config_class
    assert config_class.get_type().startswith("spin_")
    assert getattr(spin_d3rlpy, config_class.__name__) is config_class


def test_no_two_algorithms_share_a_type() -> None:
    kinds = set()
    for algo_class in ALGORITHMS:
        config = algo_class().config
        policy = config.policy.get_type() if hasattr(config, "policy") else None
        kinds.add((config.get_type(), policy))
    assert len(kinds) == len(ALGORITHMS) == 26


# -- copying ---------------------------------------------------------------------------------


# -- acting online ---------------------------------------------------------------------------


def test_an_offline_dataset_fills_the_online_buffer() -> None:
    buffer = create_replay_buffer(SignEnv(), episodes=random_buffer().episodes)
    assert buffer.size() == random_buffer().size()
    assert buffer.episodes[3].actions.tolist() == random_buffer().episodes[3].actions.tolist()
    algo = built(FactoredIQL)
    algo.fit_online(SignEnv(), buffer, n_steps=3, **QUIET)
    assert algo.grad_step == 3


@pytest.mark.parametrize(
    ("space", "nvec"),
    [
        (gymnasium.spaces.Discrete(4), [4]),
        (gymnasium.spaces.Discrete(4, start=2), [4]),
        (gymnasium.spaces.MultiBinary(3), [2, 2, 2]),
        (gymnasium.spaces.MultiDiscrete([3, 2], start=[5, -1]), [3, 2]),
    ],
    ids=str,
)
def test_other_discrete_spaces_are_read_as_slots(space: Any, nvec: list[int]) -> None:
    algo, env = make(DecQN), SignEnv(space)
    explorer = MultiDiscreteEpsilonGreedy(1.0, 1.0)
    buffer = create_replay_buffer(env, limit=100)
    algo.fit_online(env, buffer, n_steps=60, random_steps=30, explorer=explorer, **QUIET)
    assert algo.config.nvec == nvec
    assert algo.grad_step > 0
    # The environment asserts that it gets actions of its own space; algorithms count from 0.
    taken = np.concatenate([e.actions.reshape(-1, len(nvec)) for e in buffer.episodes])
    assert taken.min(0).tolist() == [0] * len(nvec)
    assert taken.max(0).tolist() == [m - 1 for m in nvec]


@pytest.mark.parametrize("start", [0, 3])
def test_evaluators_act_in_spaces_with_one_slot(start: int) -> None:
    space = gymnasium.spaces.Discrete(4, start=start)
    gymnasium.register("tests/sign-v0", lambda **_: SignEnv(space))
    try:
        env = gymnasium.make("tests/sign-v0", disable_env_checker=True)
        algo = make(FactoredIQL)
        algo.build_with_env(env)
        assert np.isfinite(LockstepEvaluator(env, n_trials=3)(algo))
    finally:
        gymnasium.registry.pop("tests/sign-v0")


@pytest.mark.slow
def test_decqn_learns_online() -> None:
    algo = make(DecQN, batch_size=64, tau=0.1, gamma=0.0, **learning_rates(DecQN, 3e-3))
    algo.fit_online(
        SignEnv(),
        explorer=MultiDiscreteEpsilonGreedy(1.0, 0.2, 1_000),
        n_steps=2_000,
        update_interval=2,
        **QUIET,
    )
    states = np.random.default_rng(3).normal(size=(500, OBSERVATION_SIZE)).astype(np.float32)
    right = np.where(states[:, :3] > 0, np.array(NVEC) - 1, 0)
    assert (algo.predict(states) == right).all(1).mean() > 0.75


def test_epsilon_greedy_explores_each_slot_by_itself() -> None:
    algo = built(DecQN)
    x = np.repeat(OBSERVATIONS, 1_000, axis=0)
    greedy = algo.predict(x)
    explored = MultiDiscreteEpsilonGreedy(0.8, 0.2, 10).sample(algo, x, step=5)
    assert (explored < NVEC).all()
    # Epsilon is 0.5; of random choices, one in m_i is the greedy one.
    share = (explored != greedy).mean(0)
    assert np.allclose(share, [0.5 * (1 - 1 / m) for m in NVEC], atol=0.03)
    both = ((explored != greedy)[:, 0] & (explored != greedy)[:, 2]).mean()
    assert both == pytest.approx(share[0] * share[2], abs=0.03)  # independently
    assert (MultiDiscreteEpsilonGreedy(1.0, 0.0, 10).sample(algo, x, step=99) == greedy).all()


@pytest.mark.parametrize("arguments", [(1.5, 0.1, 10), (1.0, -0.1, 10), (1.0, 0.1, 0)])
def test_impossible_exploration_is_refused(arguments: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="probabilities in"):
        MultiDiscreteEpsilonGreedy(*arguments)


def test_the_hosts_explorers_impossible_actions_are_an_error() -> None:
    with pytest.raises(InvalidActionSpaceError, match="MultiDiscreteEpsilonGreedy"):
        make(DecQN).collect(
            SignEnv(), explorer=ConstantEpsilonGreedy(1.0), n_steps=200, show_progress=False
        )


# -- evaluators ------------------------------------------------------------------------------


def test_action_match_counts_rows_or_slots() -> None:
    algo = built(FactoredBC)
    buffer = random_buffer()
    matches = algo.predict(buffer.observations[buffer.observation_index].numpy()) == (
        buffer.actions.numpy()
    )
    episodes = random_replay_buffer().episodes
    exact, slot = (MultiDiscreteActionMatchEvaluator(mode) for mode in ("exact", "slot"))
    assert slot(algo, random_replay_buffer()) == pytest.approx(
        np.mean([algo.predict(e.observations) == e.actions for e in episodes])
    )
    metrics = algo.fit(buffer, n_steps=1, evaluators={"exact": exact, "slot": slot}, **QUIET)[-1][1]
    assert 0.0 < metrics["exact"] < metrics["slot"] < 1.0
    assert MultiDiscreteActionMatchEvaluator("exact", episodes=buffer.episodes)(
        algo, random_buffer(seed=5)
    ) == pytest.approx(metrics["exact"])
    assert matches.all(1).mean() == pytest.approx(metrics["exact"], abs=0.05)
    with pytest.raises(ValueError, match="'slot' or 'exact', got 'row'"):
        MultiDiscreteActionMatchEvaluator("row")  # type: ignore[arg-type]


def test_the_hosts_action_match_still_fails_on_slots() -> None:
    algo, evaluator = built(FactoredBC), DiscreteActionMatchEvaluator()
    with pytest.raises((ValueError, AttributeError)):
        evaluator(algo, random_buffer())


# -- off-policy evaluation -------------------------------------------------------------------


@pytest.mark.slow
def test_fqe_finds_the_value_of_a_policy_with_interacting_slots() -> None:
    # Reward 1 if the first two slots are equal, which no sum over slots can express.
    rng = np.random.default_rng(0)
    actions = rng.integers([2, 2], size=(600, 2))
    states = rng.normal(size=(600, 3)).astype(np.float32)
    rewards = (actions[:, :1] == actions[:, 1:]).astype(np.float32)
    episodes = [
        d3rlpy.dataset.Episode(states[i : i + 6], actions[i : i + 6], rewards[i : i + 6], True)
        for i in range(0, 600, 6)
    ]
    data = d3rlpy.dataset.ReplayBuffer(d3rlpy.dataset.InfiniteBuffer(), episodes=episodes)
    algo = make(FactoredBC, nvec=[2, 2], batch_size=64, actor_learning_rate=1e-2)
    algo.fit(data, n_steps=1, **QUIET)
    with torch.no_grad():  # the policy takes (1, 1) everywhere
        algo.impl.policy.heads.bias.copy_(torch.tensor([0.0, 50.0, 0.0, 50.0]))
    config = MultiDiscreteFQEConfig(learning_rate=3e-3, gamma=0.5, batch_size=64, tau=0.05)
    fqe = MultiDiscreteFQE(algo, config)
    fqe.fit(
        data,
        n_steps=600,
        evaluators={"initial": InitialStateValueEstimationEvaluator()},
        **QUIET,
    )
    x = states[:50]
    # From a fresh state the episode pays 1 at each of about six steps at a discount of a half.
    for action, first in (([1, 1], 1.0), ([0, 0], 1.0), ([0, 1], 0.0)):
        values = fqe.predict_value(x, np.array([action] * 50))
        assert first + 0.5 < values.mean() < first + 1.1
    assert fqe.predict(x).tolist() == [[1, 1]] * 50
    assert fqe.sample_action(x).tolist() == [[1, 1]] * 50


def test_fqe_refuses_what_does_not_fit() -> None:
    with pytest.raises(RuntimeError, match="Train or build"):
        MultiDiscreteFQE(make(FactoredIQL))
    algo = built(FactoredIQL)
    with pytest.raises(NvecMismatchError, match=r"nvec=\[3\]"):
        MultiDiscreteFQE(algo, MultiDiscreteFQEConfig(nvec=[3]))
    with pytest.raises(NvecMismatchError, match="without nvec and observation_scaler"):
        MultiDiscreteFQE(algo, MultiDiscreteFQEConfig(observation_scaler=MinMaxObservationScaler()))
    with pytest.raises(NotImplementedError, match="MultiDiscreteFQE"):
        MultiDiscreteFQEConfig().create()


def test_the_hosts_fqe_still_fails_on_slots() -> None:
    algo = built(FactoredIQL)
    with pytest.raises(Exception):  # noqa: B017, PT011
        DiscreteFQE(algo, FQEConfig()).fit(
            random_replay_buffer(), n_steps=1, n_steps_per_epoch=1, **QUIET
        )


# -- exports ---------------------------------------------------------------------------------


def check_export(algo_class: Any, path: Path) -> None:
    algo = make(algo_class, observation_scaler=StandardObservationScaler())
    algo.fit(random_buffer(), n_steps=2, **QUIET)
    algo.save_policy(str(path))
    # 11 rows, though policies are exported with fewer.
    found = exported_actions(path, observations=OBSERVATIONS)
    assert found.tolist() == algo.predict(OBSERVATIONS).tolist()
    algo.fit(random_buffer(), n_steps=1, **QUIET)  # still trains, with its trunk still frozen
    if has_field(algo_class, "pretraining"):
        network = getattr(algo.impl.policy, "features", algo.impl.policy)
        frozen = [p for n, p in network.named_parameters() if "queries" not in n]
        assert not any(p.requires_grad for p in frozen)
        assert len(frozen) >= 4


# Values; products of SPIN's weights are exported in test_docs.py, the rest are slow tests.
ACTING = {"DecQNIQL"}


@pytest.mark.parametrize(
    "algo_class",
    [pytest.param(a, marks=() if a.__name__ in ACTING else pytest.mark.slow) for a in ALGORITHMS],
)
def test_onnx_acts_the_same(algo_class: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    check_export(algo_class, tmp_path / "policy.onnx")


def test_other_formats_and_unbuilt_policies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="build_with_dataset"):
        make(FactoredIQL).save_policy("policy.pt")
    with pytest.raises(ValueError, match=r"\.pt or \.onnx, got 'policy.h5'"):
        built(FactoredIQL).save_policy("policy.h5")


@pytest.mark.parametrize("target_decay", [0.0, 0.9])
@pytest.mark.parametrize("source_decay", [0.0, 0.9])
@pytest.mark.parametrize("algo_class", [SPINIQL, SPINIDQL, FactoredIQL, SPINDistillIQL])
def test_a_copied_policy_acts_alike_and_stays_pretrained(
    algo_class: Any, source_decay: float, target_decay: float
) -> None:
    source = make(algo_class, seed=1, ema_decay=source_decay, **tiny_fields(algo_class))
    source.fit(
        random_buffer(),
        n_steps=3,
        n_steps_per_epoch=3,
        show_progress=False,
        logger_adapter=NoopAdapterFactory(),
    )
    target = make(algo_class, seed=2, ema_decay=target_decay, **tiny_fields(algo_class))
    target.build_with_dataset(random_buffer())
    before = target.predict(OBSERVATIONS)
    target.copy_policy_from(source)
    target.copy_q_function_from(source)  # IDQL's critics choose among the policy's samples
    assert not np.array_equal(before, target.predict(OBSERVATIONS))
    assert np.array_equal(target.predict(OBSERVATIONS), source.predict(OBSERVATIONS))
    assert target.impl.policy.is_pretrained == source.impl.policy.is_pretrained


def test_copied_critics_value_alike_in_returns_units() -> None:
    fields = {**tiny_fields(SPINIDQL), "joint_critic": True}
    source = make(SPINIDQL, seed=1, **fields)
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    source.fit(random_buffer(), n_steps=3, n_steps_per_epoch=3, **quiet)
    target = make(SPINIDQL, seed=2, **fields)
    target.build_with_dataset(random_buffer())  # its returns are not measured
    target.copy_q_function_from(source)
    actions = source.predict(OBSERVATIONS)
    expected = source.predict_value(OBSERVATIONS, actions)
    assert np.array_equal(target.predict_value(OBSERVATIONS, actions), expected)


def test_critics_of_another_kind_or_size_are_not_copied() -> None:
    joint = built(SPINIDQL, **{**tiny_fields(SPINIDQL), "joint_critic": True})
    with pytest.raises(ValueError, match="with a FactoredCritic, got JointCritic"):
        built(FactoredIQL).copy_q_function_from(joint)
    wider = make(FactoredIQL, critic_encoder_factory=VectorEncoderFactory([17]))
    wider.build_with_dataset(random_buffer())
    with pytest.raises(ValueError, match="critics have other sizes"):
        wider.copy_q_function_from(built(FactoredIQL))


def test_a_policy_of_another_kind_or_size_is_not_copied() -> None:
    factored = built(FactoredIQL)
    with pytest.raises(ValueError, match="with a SlotPolicy as policy, got FactoredPolicy"):
        built(SPINIQL, **tiny_fields(SPINIQL)).copy_policy_from(factored)
    wider = make(FactoredIQL, encoder_factory=VectorEncoderFactory([17]))
    wider.build_with_dataset(random_buffer())
    with pytest.raises(ValueError, match="has other sizes"):
        wider.copy_policy_from(factored)


def test_an_update_that_fit_would_not_call_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Waits overrides inner_update.*Override compute_update"):

        class Waits(BCImpl):
            def inner_update(self, batch: Any, grad_step: int) -> dict[str, float]:
                return {"loss": 0.0}


def test_saving_what_is_not_fitted_is_an_error_with_advice(tmp_path: Path) -> None:
    algo = SPINIQL(recipe="tuned")
    with pytest.raises(RuntimeError, match="Call fit, build_with_dataset or build_with_env first"):
        algo.save(str(tmp_path / "unbuilt.d3"))
    algo.build_with_env(SignEnv())
    with pytest.raises(RuntimeError, match="as observation_scaler, which is not fitted"):
        algo.save(str(tmp_path / "unfitted.d3"))
    assert not list(tmp_path.iterdir())
