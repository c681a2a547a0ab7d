"""Opening a policy: a training folder, a file, a shipped policy or one on the hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import d3rlpy
import gymnasium

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.saving import load_policy
from spin_d3rlpy.asm.rule_files import trusted_rules
from spin_d3rlpy.data.action_spaces import with_flat_actions
from spin_d3rlpy.data.minari.environments import texts_with_colons
from spin_d3rlpy.evaluation.metrics import ActingAlgo
from spin_d3rlpy.files.results import read_json
from spin_d3rlpy.nvec import nvec_from_space, require_same_nvec
from spin_d3rlpy.runs.hub import HUB, load_from_hub, require_repository
from spin_d3rlpy.runs.training import POLICY, RESULT
from spin_envs.behavior import load_behavior_policy, policy_task


@dataclasses.dataclass(frozen=True)
class OpenedPolicy:
    """A policy and, as far as known, its environment."""

    actor: ActingAlgo  # what chooses actions
    nvec: list[int] | None = None  # number of choices of each slot, if known
    env_id: str | None = None  # Gymnasium id of its environment, if known
    env_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # its arguments

    @property
    def algorithm(self) -> MultiDiscreteAlgo[Any, Any]:
        """The trained algorithm; raises ValueError if it is none, e.g. a shipped policy."""
        if not isinstance(self.actor, MultiDiscreteAlgo):
            raise ValueError("Expected a trained algorithm of this package, this policy is none.")
        return self.actor

    def make_env(
        self,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> gymnasium.Env[Any, Any]:
        """Makes an environment with the policy's action space, of slots of choices.

        It is the policy's own if `env_id` is None; `env_kwargs` are then added to its arguments.

        Raises:
            NvecMismatchError: the environment has another action space.
            InvalidActionSpaceError: likewise, where its actions are converted.
            ValueError: the policy's own environment is unknown, or would import a module.
        """
        arguments = dict(env_kwargs or {})
        if env_id is None:
            if self.env_id is None:
                raise ValueError(
                    "The policy's environment is unknown: pass one (on the command line: --env), "
                    "or estimate the policy's value from data (evaluate --dataset)."
                )
            # They may stand in a file that anyone may have made, and gymnasium.make would import.
            for text in texts_with_colons([self.env_id, self.env_kwargs]):
                raise ValueError(
                    f"The policy's folder names {text!r} for its environment, and Gymnasium "
                    "imports what stands before a colon. If you trust it, pass the environment "
                    "and its arguments yourself (on the command line: --env, --env-arg)."
                )
            env_id, arguments = self.env_id, {**self.env_kwargs, **arguments}
        made = gymnasium.make(env_id, render_mode=render_mode, **arguments)
        env = with_flat_actions(made, getattr(self.actor, "flat_actions", None))
        if self.nvec is not None:
            require_same_nvec(self.nvec, nvec_from_space(env.action_space), "The policy", env_id)
        return env


def open_policy(policy: str, device: str = "cpu:0", trust: bool = False) -> OpenedPolicy:
    """Opens a policy.

    Args:
        policy: the folder of a finished `spin-d3rlpy train`; a `.safetensors` file from
            `save_policy`; a `.d3` file (a pickle: open only trusted files); or a shipped behavior
            policy's name, e.g. `"cheetah-run-b3-expert"`. `"hf://<user>/<name>"`, also with
            `@<revision>` at its end, is a policy on the Hugging Face hub.
        device: of a trained policy, as in d3rlpy.
        trust: see `load_policy`.

    Raises:
        FileNotFoundError: there is no such folder, file or shipped policy.
        InvalidCheckpointError: the `.safetensors` file is not from `save_policy`.
        UntrustedRuleError: it has functions as rules, without `trust`.
        RemoteError: the hub is unusable.
        ValueError: after `hf://` stands no repository.
    """
    if policy.startswith(HUB):
        repository, _, revision = policy.removeprefix(HUB).partition("@")
        require_repository(repository)  # never a folder
        pulled = load_from_hub(repository, revision or None, device, trust=trust)
        return OpenedPolicy(pulled, pulled.config.nvec)
    path = Path(policy)
    if path.suffix == ".d3":
        if not path.exists():
            raise FileNotFoundError(f"No file {policy}.")
        with trusted_rules() if trust else nullcontext():
            algo: Any = d3rlpy.load_learnable(policy, device=device)
        return OpenedPolicy(algo, getattr(algo.config, "nvec", None))
    if not path.is_dir() and path.suffix != ".safetensors":
        try:
            behavior, task = load_behavior_policy(policy), policy_task(policy)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"No policy {policy!r}. Expected the folder of a finished `spin-d3rlpy train`, a "
                f"file of save_policy (.safetensors), a .d3 file or a behavior policy. {error}"
            ) from error
        nvec = behavior.nvec.tolist()
        actor: Any = SimpleNamespace(predict=behavior, sample_action=behavior)
        return OpenedPolicy(actor, nvec, task.env_id, task.env_kwargs)
    file = path / POLICY if path.is_dir() else path
    loaded = load_policy(file, device, trust=trust)
    known = read_json(path / RESULT) if (path / RESULT).exists() else {}
    env_id, env_kwargs = known.get("env"), known.get("env_args", {})
    return OpenedPolicy(loaded, loaded.config.nvec, env_id, env_kwargs)
