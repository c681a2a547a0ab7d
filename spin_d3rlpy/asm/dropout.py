"""Dropout that begins while a model is trained: once it overfits."""

from __future__ import annotations

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
    for module in network.modules():
        if isinstance(module, fast.Dropout):
            module.p = rate
