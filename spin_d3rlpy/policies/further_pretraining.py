"""Further pre-training in place of an objective's steps, where critics will not act."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.pretraining import Pretraining, PretrainingConfig
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.policies.stages import StageContext
from spin_d3rlpy.training.loop import Metrics
from spin_d3rlpy.training.schedules import Schedule


class FurtherPretraining:
    """Further steps of the pre-training of a policy that is a structure model.

    A copy of the model is trained, and `hand_over` gives the policy the average of its weights. The
    stage's schedule of the learning rate starts over, for the share of the run that is left, from
    this share of the rate: a short rest changes the model little.

    Args:
        policy: whose model it is.
        create_context: returns the stage's inputs, which are asked for once there is a step to be
            made.
    """

    def __init__(self, policy: JointPolicy, create_context: Callable[[], StageContext]) -> None:
        self._policy, self._create_context = policy, create_context
        self._begun: _Begun | None = None

    def update(self, progress: float) -> Metrics:
        """Makes a step; returns `asm_loss` and `asm_accuracy`, as pre-training does.

        Args:
            progress: completed share of the run, in [0, 1].
        """
        begun = self._begun or self._begin(self._create_context(), progress)
        metrics = begun.update(progress)
        return {f"asm_{name}": value for name, value in metrics.items()}

    def hand_over(self) -> None:
        """Gives the policy the model as it is by now, if there was a step."""
        if self._begun is not None:
            with self._begun.training.averaged():
                self._policy.load_asm(self._begun.model)

    def state_dict(self) -> dict[str, Any]:
        """Returns what was trained; nothing before the first step."""
        return {} if self._begun is None else self._begun.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        if state:
            self._begin(self._create_context(), state["began"]).load_state_dict(state)

    def _begin(self, context: StageContext, progress: float) -> _Begun:
        config: PretrainingConfig = context.with_precision(context.factory.pretraining)
        self._begun = _Begun(self._policy.asm, context, config, progress)
        return self._begun


class _Begun:
    """A copy of a model in training, from a share of the run."""

    def __init__(
        self,
        asm: ActionStructureModel,
        context: StageContext,
        config: PretrainingConfig,
        began: float,
    ) -> None:
        self.model = copy.deepcopy(asm).requires_grad_(True)
        device = asm.device
        # Some objectives have networks of their own, and a resumed run makes them once more.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.training = Pretraining(
                self.model, context.buffer, config, context.run, context.transform, context.held_out
            )
        self._schedule = Schedule(config.lr_schedule, config.lr_warmup)
        self._rate, self._began, self._steps = config.learning_rate, began, 0

    def update(self, progress: float) -> Metrics:
        training, left = self.training, 1.0 - self._began
        # A short run can have none of its time left when critics are given up.
        progress = (progress - self._began) / left if left > 0.0 else 1.0
        factor = self._schedule.factor(progress)
        for group in training.optimizer.param_groups:
            group["lr"] = left * factor * self._rate
        metrics = training.update(self._steps + 1, progress)
        if training.average is not None:
            training.average.update(self._steps)
        self._steps += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        average = self.training.average
        return {
            "began": self._began,
            "steps": self._steps,
            "parts": {name: part.state_dict() for name, part in self.training.parts.items()},
            "average": None if average is None else average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]
        for name, part in self.training.parts.items():
            part.load_state_dict(state["parts"][name])
        if self.training.average is not None:
            self.training.average.load_state_dict(state["average"])
