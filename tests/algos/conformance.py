"""What every algorithm must do, for contributors: `check_algo` on yours.

d3rlpy's own `algo_tester` was the model. Each check is a function of a `Case`; the suite runs them
one by one on all algorithms (`test_conformance.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer
from d3rlpy.logging import FileAdapterFactory, NoopAdapterFactory
from d3rlpy.metrics import (
    AverageValueEstimationEvaluator,
    CompareDiscreteActionMatchEvaluator,
    DiscountedSumOfAdvantageEvaluator,
    EnvironmentEvaluator,
    InitialStateValueEstimationEvaluator,
    SoftOPCEvaluator,
    TDErrorEvaluator,
)
from d3rlpy.optimizers import SGDFactory
from d3rlpy.preprocessing import MultiplyRewardScaler, StandardObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy import BCConfig, LockstepEvaluator, MultiDiscreteFQE, create_replay_buffer
from spin_d3rlpy._compat import quiet_tracing
from spin_d3rlpy.algos.exports import policy_inputs
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.observation_spaces import with_flat_observations
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.policies.joint import JointPolicy

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
BATCH_SIZE = 19


@dataclasses.dataclass(frozen=True)
class Case:
    """An algorithm and what to try it on.

    Args:
        make_config: returns its config with small networks; takes config fields as keywords.
        dataset: episodes with terminal and with truncated ends.
        make_env: returns an environment of the dataset's spaces, whose episodes are short.
        folder: an empty one.
    """

    make_config: Callable[..., Any]
    dataset: DeviceReplayBuffer
    make_env: Callable[[], Any]
    folder: Path

    def make(self, seed: int = 1, **fields: Any) -> Any:
        """Returns the algorithm, not built."""
        d3rlpy.seed(seed)
        return self.make_config(**{"batch_size": BATCH_SIZE, **fields}).create(device="cpu:0")

    def built(self, seed: int = 1, **fields: Any) -> Any:
        """Returns the algorithm, built for the dataset."""
        algo = self.make(seed, **fields)
        algo.build_with_dataset(self.dataset)
        return algo

    def fitted(self, n_steps: int = 4, **fields: Any) -> Any:
        """Returns the algorithm after a few steps."""
        algo = self.make(**fields)
        algo.fit(self.dataset, n_steps=n_steps, **QUIET)
        return algo

    def has(self, field: str) -> bool:
        """Whether the config has a field of this name."""
        return hasattr(self.make_config(), field)

    @property
    def has_values(self) -> bool:
        """Whether the algorithm learns values."""
        return not isinstance(self.make_config(), BCConfig)

    @property
    def observations(self) -> np.ndarray:
        """Eleven observations."""
        observations: np.ndarray = self.dataset.observations_at(torch.arange(11)).numpy()
        return observations

    @property
    def stock_buffer(self) -> ReplayBuffer:
        """The dataset as d3rlpy holds one."""
        return ReplayBuffer(
            InfiniteBuffer(),
            episodes=self.dataset.episodes,
            action_space=d3rlpy.ActionSpace.DISCRETE,
            action_size=max(self.dataset.nvec),
        )

    def batch(self, n: int = BATCH_SIZE) -> TorchMiniBatch:
        """A batch of the dataset."""
        return self.dataset.sample_transition_batch(n)


def networks(algo: Any) -> dict[str, torch.Tensor]:
    """Copies of everything that is saved of an algorithm's networks."""
    return {
        f"{name}.{key}": value.clone()
        for name, network in algo.impl.modules.get_torch_modules().items()
        for key, value in network.state_dict().items()
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], prefix: str = "") -> bool:
    """Whether `networks` agree in what starts with a prefix."""
    keys = [k for k in one if k.startswith(prefix)]
    assert keys
    return all(torch.equal(one[k], other[k]) for k in keys)


# -- the checks ------------------------------------------------------------------------------


def acts_within_the_action_space(case: Case) -> None:
    algo, x, nvec = case.fitted(n_steps=1), case.observations, case.dataset.nvec
    for actions in (algo.predict(x), algo.sample_action(x)):
        assert actions.shape == (11, len(nvec))
        assert np.issubdtype(actions.dtype, np.integer)
        assert ((actions >= 0) & (actions < nvec)).all()
    if not case.has_values:
        with pytest.raises(NotImplementedError, match="learns no values"):
            algo.predict_value(x, algo.predict(x))
        return
    values = algo.predict_value(x, algo.predict(x))
    assert values.shape == (11,)
    assert np.isfinite(values).all()


def fits_step_by_step(case: Case) -> None:
    """Exactly the steps asked for, in epochs between which the user may act."""
    algo = case.make()
    steps: list[Any] = []
    epochs: list[Any] = []
    between = []
    for epoch, metrics in algo.fitter(
        case.dataset,
        n_steps=5,
        n_steps_per_epoch=2,
        callback=lambda *args: steps.append(args),
        epoch_callback=lambda *args: epochs.append(args),
        **QUIET,
    ):
        between.append((epoch, algo.grad_step))
        assert any(name.endswith("loss") for name in metrics)
        assert all(np.isfinite(v) for v in metrics.values())
    assert between == [(1, 2), (2, 4), (3, 5)]
    assert steps == [(algo, e, s) for e, s in ((1, 1), (1, 2), (2, 3), (2, 4), (3, 5))]
    assert epochs == [(algo, 1, 2), (algo, 2, 4), (algo, 3, 5)]


def repeats_itself_from_a_seed(case: Case) -> None:
    outcomes = []
    for _ in range(2):
        algo = case.make()
        metrics = algo.fit(case.dataset, n_steps=4, **QUIET)[-1][1]
        losses = {k: v for k, v in metrics.items() if not k.startswith(("time", "seconds"))}
        x = case.observations
        outcomes.append((losses, algo.predict(x).tolist(), algo.sample_action(x).tolist()))
    assert outcomes[0] == outcomes[1]


def saves_and_loads(case: Case) -> None:
    """As one file, as weights for another of its kind, and as JSON."""
    algo = case.make(observation_scaler=StandardObservationScaler())
    algo.fit(
        case.dataset,
        n_steps=4,
        logger_adapter=FileAdapterFactory(str(case.folder)),
        experiment_name="run",
        with_timestamp=False,
        show_progress=False,
    )
    algo.save(str(case.folder / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(case.folder / "algo.d3"))
    assert type(loaded) is type(algo)
    assert loaded.config.nvec == case.dataset.nvec

    algo.save_model(str(case.folder / "model.pt"))
    other = case.built(seed=2, observation_scaler=StandardObservationScaler())
    assert not same(networks(algo), networks(other))
    other.load_model(str(case.folder / "model.pt"))

    x, batch = case.observations, case.batch()
    for one in (loaded, other):
        assert same(networks(algo), networks(one))
        assert algo.predict(x).tolist() == one.predict(x).tolist()
    for one in (algo, loaded, other):  # optimizers were saved, too: all continue alike
        torch.manual_seed(3)
        one.update(batch)
    assert same(networks(algo), networks(loaded))
    assert same(networks(algo), networks(other))

    again = type(algo).from_json(str(case.folder / "run" / "params.json"))
    assert json.loads(again.config.serialize()) == json.loads(algo.config.serialize())
    assert networks(again).keys() == networks(algo).keys()


def updates_alike_on_batches_of_either_kind(case: Case) -> None:
    """On d3rlpy's and on ours, scalers included."""
    stock = case.stock_buffer.sample_transition_batch(BATCH_SIZE)
    device = TorchMiniBatch.from_batch(
        stock, gamma=0.99, compute_returns_to_go=False, device="cpu:0"
    )
    outcomes = []
    scalers: dict[str, Any] = {
        "observation_scaler": StandardObservationScaler(),
        "reward_scaler": MultiplyRewardScaler(7.0),
    }
    for batch, fields in ((stock, scalers), (device, scalers), (device, {})):
        algo = case.built(**fields)
        torch.manual_seed(3)
        outcomes.append(algo.update(batch))
        assert all(isinstance(v, float) and np.isfinite(v) for v in outcomes[-1].values())
        assert algo.grad_step == 1
    assert outcomes[0] == outcomes[1] != outcomes[2]


def fits_a_stock_buffer(case: Case) -> None:
    algo = case.make(nvec=case.dataset.nvec)
    algo.fit(case.stock_buffer, n_steps=2, **QUIET)
    assert algo.grad_step == 2


def builds_from_anything_alike(case: Case) -> None:
    size = case.dataset.observation_size
    from_data, from_env = case.built(), case.make()
    from_env.build_with_env(case.make_env())
    images = case.dataset.observation_layout
    from_shape = case.make(nvec=case.dataset.nvec, observation_layout=images)
    from_shape.create_impl((size,), max(case.dataset.nvec))
    for algo in (from_env, from_shape):
        assert same(networks(from_data), networks(algo))
        assert algo.action_size == max(case.dataset.nvec)
        assert tuple(algo.observation_shape) == (size,)
        assert algo.get_action_type() == d3rlpy.ActionSpace.DISCRETE


def refuses_another_action_space(case: Case) -> None:
    nvec = [*case.dataset.nvec[:-1], case.dataset.nvec[-1] + 1]
    with pytest.raises(NvecMismatchError):
        case.built(nvec=nvec)


def moves_every_trainable_parameter(case: Case) -> None:
    """By one huge step; nothing else moves."""
    huge: dict[str, Any] = {}
    for name in ("", "actor_", "critic_"):
        if case.has(f"{name}learning_rate"):
            huge |= {f"{name}learning_rate": 1e3, f"{name}optim_factory": SGDFactory()}
    if case.has("lam"):  # with values this far off, another temperature leaves policies no weight
        huge["lam"] = 1e9
    algo = case.built(**huge)
    parts = algo.impl.modules.get_torch_modules()
    before = networks(algo)
    algo.update(case.batch(64))
    for name, network in parts.items():
        for key, parameter in network.named_parameters():
            moved = not torch.equal(before[f"{name}.{key}"], parameter)
            assert moved == parameter.requires_grad or name.startswith("targ"), f"{name}.{key}"


def switches_between_training_and_acting(case: Case) -> None:
    algo = case.built()
    algo.update(case.batch())
    parts = algo.impl.modules.get_torch_modules().values()
    for network in parts:
        assert network.training
        if isinstance(network, JointPolicy):  # its model is not trained
            assert not any(module.training for module in network.asm.modules())
        else:
            assert all(module.training for module in network.modules())
    x = case.observations
    assert np.array_equal(algo.predict(x), algo.predict(x))
    assert not any(module.training for network in parts for module in network.modules())


def copies_policies_and_values(case: Case) -> None:
    algo, other = case.built(), case.built(seed=2)
    algo.update(case.batch())
    parts = algo.impl.modules.get_torch_modules()
    for part, name in (("policy", "policy"), ("q_funcs", "q_function")):
        if part not in parts:
            continue
        assert not same(networks(algo), networks(other), f"{part}.")
        getattr(other, f"copy_{name}_from")(algo)
        assert same(networks(algo), networks(other), f"{part}.")
        if part == "policy" and algo.impl.modules.actor_optim is None:
            continue  # nothing of it is trained
        getattr(other, f"copy_{name}_optim_from")(algo)
        state, found = (
            getattr(a.impl, f"{name}_optim").state_dict()["state"] for a in (algo, other)
        )
        assert state
        assert all(torch.equal(state[k]["exp_avg"], found[k]["exp_avg"]) for k in state)


def resets_optimizers(case: Case) -> None:
    algo = case.built()
    algo.update(case.batch())
    optimizers = [optim.optim for optim in algo.impl.optimizers]
    assert optimizers
    assert all(optim.state for optim in optimizers)
    algo.reset_optimizer_states()
    assert not any(optim.state for optim in optimizers)
    algo.update(case.batch())


def collects_and_trains_online(case: Case) -> None:
    algo, env = case.make(), case.make_env()
    if case.dataset.history is not None:
        with pytest.raises(ValueError, match="history is learned from datasets"):
            algo.collect(env, n_steps=25, show_progress=False)
        return
    has_scaler = algo.config.observation_scaler is not None
    if not case.has_values or has_scaler or case.has("logged_actions"):  # these need data
        algo.build_with_dataset(case.dataset)
    buffer = algo.collect(env, n_steps=25, show_progress=False)
    assert 0 < buffer.transition_count <= 25
    assert buffer.episodes[0].actions.shape[1:] == (len(case.dataset.nvec),)
    algo.fit_online(
        env,
        create_replay_buffer(case.make_env(), limit=1_000),
        n_steps=30,
        n_steps_per_epoch=15,
        eval_env=case.make_env(),
        eval_n_trials=2,
        random_steps=5,
        **QUIET,
    )
    assert algo.grad_step > 0


def is_evaluated(case: Case) -> None:
    """By d3rlpy's evaluators, those of values where there are any, and by ours of policies."""
    evaluators: dict[str, Any] = {"return": LockstepEvaluator(case.make_env(), n_trials=2)}
    if case.dataset.history is None:  # d3rlpy's keeps none
        env = with_flat_observations(case.make_env())  # d3rlpy knows no dicts
        evaluators["stock"] = EnvironmentEvaluator(env, n_trials=2, epsilon=0.1)
    if case.has_values:
        evaluators |= {
            "td_error": TDErrorEvaluator(),
            "advantage": DiscountedSumOfAdvantageEvaluator(),
            "value": AverageValueEstimationEvaluator(),
            "initial_value": InitialStateValueEstimationEvaluator(),
            "soft_opc": SoftOPCEvaluator(return_threshold=0.0),
        }
    algo = case.make(observation_scaler=StandardObservationScaler())
    metrics = algo.fit(case.dataset, n_steps=1, evaluators=evaluators, **QUIET)[-1][1]
    assert all(np.isfinite(metrics[name]) for name in evaluators)
    if case.has_values:
        assert CompareDiscreteActionMatchEvaluator(algo)(algo, case.dataset) == 1.0
    before = networks(algo)
    for mode in ("greedy", "sample"):
        fqe = MultiDiscreteFQE(algo, mode=mode)
        assert np.isfinite(fqe.fit(case.dataset, n_steps=2, **QUIET)[-1][1]["loss"])
    assert same(before, networks(algo))


def exports_to_torchscript(case: Case) -> None:
    algo = case.make(observation_scaler=StandardObservationScaler())
    algo.fit(case.dataset, n_steps=2, **QUIET)
    frozen = frozen_parameters(algo)
    path = str(case.folder / "policy.pt")
    algo.save_policy(path)
    with quiet_tracing():  # newer versions of torch deprecate it
        policy = torch.jit.load(path)
    # Of 11 rows, though policies are exported with fewer.
    found = policy(policy_inputs(algo).parts(torch.from_numpy(case.observations)))
    assert found.tolist() == algo.predict(case.observations).tolist()
    assert frozen_parameters(algo) == frozen  # d3rlpy thaws everything
    algo.fit(case.dataset, n_steps=1, **QUIET)


def frozen_parameters(algo: Any) -> set[str]:
    """Names of parameters that get no gradients."""
    parts = algo.impl.modules.get_torch_modules().items()
    return {
        f"{name}.{key}"
        for name, network in parts
        for key, parameter in network.named_parameters()
        if not parameter.requires_grad
    }


def has_a_name_a_type_and_docs(case: Case) -> None:
    config = case.make_config(batch_size=7)
    algo = config.create(device="cpu:0")
    assert type(algo).__name__.endswith(type(config).__name__.removesuffix("Config"))
    assert config.get_type()
    assert type(algo).__doc__
    assert type(config).__doc__
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert algo.batch_size == 7


CHECKS: list[Callable[[Case], None]] = [
    has_a_name_a_type_and_docs,
    builds_from_anything_alike,
    refuses_another_action_space,
    acts_within_the_action_space,
    fits_step_by_step,
    fits_a_stock_buffer,
    repeats_itself_from_a_seed,
    updates_alike_on_batches_of_either_kind,
    moves_every_trainable_parameter,
    switches_between_training_and_acting,
    saves_and_loads,
    copies_policies_and_values,
    resets_optimizers,
    collects_and_trains_online,
    is_evaluated,
    exports_to_torchscript,
]


def check_algo(
    make_config: Callable[..., Any], dataset: DeviceReplayBuffer, make_env: Callable[[], Any]
) -> None:
    """Runs all checks on an algorithm; `Case` says what the arguments are.

    Raises:
        AssertionError: a check fails; the traceback names it.
    """
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            check(Case(make_config, dataset, make_env, Path(folder)))
