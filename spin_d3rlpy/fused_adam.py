"""Adam whose step is little more than torch's fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensors = list[torch.Tensor]


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam(..., fused=True)` for few small parameters on a CPU.

    What `torch.optim.Adam` does around its kernel, for each parameter in each step, takes several
    times as long as the kernel with networks of two hidden layers. Here the lists that the kernel
    needs are kept. Steps, states and hooks are the same.

    Args:
        optimizer: an Adam on a CPU without states, without `amsgrad` and `maximize`; this one
            gets its parameter groups.
    """

    # Per group its parameters, first and second moments and numbers of steps.
    _lists: list[tuple[Tensors, Tensors, Tensors, Tensors]]
    _state_of_lists: Any = None

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        super().__init__(optimizer.param_groups, fused=True)
        for group in self.param_groups:
            group["fused"], group["foreach"] = True, False

    @staticmethod
    def can_replace(optimizer: torch.optim.Optimizer) -> bool:
        """Whether this class does the same as an optimizer."""
        return (
            type(optimizer) is torch.optim.Adam
            and not optimizer.state
            and all(
                not (group["amsgrad"] or group["maximize"] or group["differentiable"])
                and isinstance(group["lr"], float)
                and all(p.device.type == "cpu" for p in group["params"])
                for group in optimizer.param_groups
            )
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, as in torch."""
        super().add_param_group(param_group)
        self._state_of_lists = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients, or sets them to zero."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step down the gradients that there are.

        Args:
            closure: computes them again and returns the loss, if given.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Loading a state replaces the dictionary.
        if self._state_of_lists is not self.state:
            self._lists, complete = self._make_lists()
            self._state_of_lists = self.state if complete else None
        for group, (params, means, squares, steps) in zip(
            self.param_groups, self._lists, strict=True
        ):
            grads = [p.grad for p in params if p.grad is not None]
            if len(grads) < len(params):  # some that had one before
                params, means, squares, steps = self._lists_of(group)
            if not params:
                continue
            torch._foreach_add_(steps, 1)
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                params,
                grads,
                means,
                squares,
                [],
                steps,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return loss

    def _make_lists(self) -> tuple[list[tuple[Tensors, Tensors, Tensors, Tensors]], bool]:
        """Returns the kernel's lists, and whether all parameters had gradients."""
        lists = [self._lists_of(group) for group in self.param_groups]
        complete = all(
            len(mine[0]) == len(group["params"])
            for mine, group in zip(lists, self.param_groups, strict=True)
        )
        return lists, complete

    def _lists_of(self, group: dict[str, Any]) -> tuple[Tensors, Tensors, Tensors, Tensors]:
        """Parameters with gradients, and their states, which are made if need be."""
        params: Tensors = []
        means: Tensors = []
        squares: Tensors = []
        steps: Tensors = []
        self._init_group(group, params, [], means, squares, [], steps)  # type: ignore[no-untyped-call]
        return params, means, squares, steps
