"""Opening a policy: a training folder, a file or a shipped policy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
from numpy.typing import NDArray

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.files import load_policy
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.metrics import ActingAlgo
from spin_d3rlpy.nvec import nvec_from_space
from spin_d3rlpy.training import POLICY, RESULT
from spin_envs.behavior import load_behavior_policy, policy_task, shipped_policies


@dataclasses.dataclass(frozen=True)
class OpenedPolicy:
    """A policy and, as far as known, its environment."""

    actor: ActingAlgo  # what chooses actions
    nvec: list[int] | None = None  # number of choices of each sub-action, if known
    # Gymnasium id of the environment that it was trained for, if that is known
    env_id: str | None = None
    # that environment's arguments
    env_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def algorithm(self) -> MultiDiscreteAlgo[Any, Any]:
        """The trained algorithm.

        Raises:
            ValueError: the policy is not an algorithm, e.g. a shipped behavior policy.
        """
        if not isinstance(self.actor, MultiDiscreteAlgo):
            raise ValueError(
                f"Expected a trained algorithm of this package, got {type(self.actor).__name__}."
            )
        return self.actor

    def make_env(
        self,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> gymnasium.Env[Any, Any]:
        """Makes the policy's environment.

        Args:
            env_id: Gymnasium id; the policy's own environment if None.
            env_kwargs: arguments, e.g. `{"bins": 3}`; added to its own environment's if `env_id` is
                None.
            render_mode: as in `gymnasium.make`.

        Raises:
            ValueError: no environment is known.
            NvecMismatchError: the environment has another action space than the policy.
        """
        arguments = dict(env_kwargs or {})
        if env_id is None:
            if self.env_id is None:
                raise ValueError(
                    "The policy's environment is unknown: pass one (on the command line: --env), "
                    "or estimate the policy's value from data (evaluate --dataset)."
                )
            env_id, arguments = self.env_id, {**self.env_kwargs, **arguments}
        env = gymnasium.make(env_id, render_mode=render_mode, **arguments)
        expected = nvec_from_space(env.action_space)
        if self.nvec is not None and self.nvec != expected:
            env.close()
            raise NvecMismatchError(f"The policy has nvec={self.nvec}, {env_id} nvec={expected}.")
        return env


def open_policy(policy: str, device: str = "cpu:0") -> OpenedPolicy:
    """Opens a policy.

    Args:
        policy: the folder of a finished `spin-d3rlpy train`; a `.safetensors` file from
            `save_policy`; a `.d3` file (a pickle: open only trusted files); or a shipped behavior
            policy's name, e.g. `"cheetah-run-b3-expert"`.
        device: of a trained policy, as in d3rlpy.

    Raises:
        FileNotFoundError: there is no such folder, file or shipped policy.
        InvalidCheckpointError: the `.safetensors` file is not from `save_policy`.
    """
    path = Path(policy)
    if path.is_dir():
        loaded = load_policy(path / POLICY, device)
        result = json.loads((path / RESULT).read_text()) if (path / RESULT).exists() else {}
        return OpenedPolicy(
            loaded, loaded.config.nvec, result.get("env"), result.get("env_args", {})
        )
    if path.suffix == ".safetensors":
        loaded = load_policy(path, device)
        return OpenedPolicy(loaded, loaded.config.nvec)
    if path.suffix != ".d3":
        behavior = load_behavior_policy(policy)
        task = policy_task(policy)
        return OpenedPolicy(
            _Behavior(behavior), behavior.nvec.tolist(), task.env_id, task.env_kwargs
        )
    if not path.exists():
        raise FileNotFoundError(
            f"No file {policy}. Shipped policies: {', '.join(shipped_policies())}."
        )
    import d3rlpy

    algo: Any = d3rlpy.load_learnable(policy, device=device)
    return OpenedPolicy(algo, getattr(algo.config, "nvec", None))


@dataclasses.dataclass(frozen=True)
class _Behavior:
    """A behavior policy with an algorithm's interface."""

    act: Callable[[Any], NDArray[Any]]

    def predict(self, x: Any) -> NDArray[Any]:
        return self.act(x)

    sample_action = predict
