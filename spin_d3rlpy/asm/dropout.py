"""Dropout that begins while a model is trained: once it overfits."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from spin_d3rlpy import fast


def relu_and_dropout() -> nn.Sequential:
    """Returns a ReLU in place, after which `drop_out` can leave out features."""
    return nn.Sequential(nn.ReLU(inplace=True), fast.Dropout(0.0))


def drop_out(network: nn.Module, rate: float) -> None:
    """Leaves out a share `rate`, in [0, 1), of hidden features from now on, in training.

    References:
        * Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting,
          2014.
    """
    for module in _dropouts_of(network):
        module.p = rate


def keep_rates(network: nn.Module) -> Callable[[], None]:
    """Returns what gives a network the dropout rates back that it has now."""
    modules = _dropouts_of(network)
    rates = [module.p for module in modules]

    def restore() -> None:
        for module, rate in zip(modules, rates, strict=True):
            module.p = rate

    return restore


def _dropouts_of(network: nn.Module) -> list[fast.Dropout]:
    return [module for module in network.modules() if isinstance(module, fast.Dropout)]
