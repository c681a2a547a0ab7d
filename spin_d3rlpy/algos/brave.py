"""BraVE: values of branches of a tree of complete actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import Shape
from dataclasses_json import config as json_field

from spin_d3rlpy.algos.base import Arguments, MultiDiscreteAlgo
from spin_d3rlpy.algos.config import MultiDiscreteConfig, encoder_field
from spin_d3rlpy.algos.impl import MultiDiscreteImpl, MultiDiscreteModules
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm.rules import AnyRule
from spin_d3rlpy.critics.branch_values import BranchValues
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.batches import BatchSource, MiniBatch
from spin_d3rlpy.data.buffer.prioritized import PrioritizedReplay
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.nvec import SlotLayout, require_same_nvec
from spin_d3rlpy.search.tree import ActionTree, LoggedActions
from spin_d3rlpy.search.tree_search import (
    Evaluate,
    beam_search,
    greedy_descent,
    outputs_where,
)


def logged_actions_field() -> Any:
    """Returns a config field for `LoggedActions`, None if they are not known."""
    encoding = json_field(
        encoder=lambda actions: None if actions is None else actions.to_dict(),
        decoder=lambda content: None if content is None else LoggedActions.from_dict(content),
    )
    return dataclasses.field(default=None, metadata=encoding)


@dataclasses.dataclass()
class BraVEConfig(MultiDiscreteConfig):
    r"""BraVE: branch value estimation, as its published code does it.

    Nodes of a tree are complete actions: a child makes one choice more that is not 0, in a later
    slot. Only nodes on the way to logged actions exist. One network :math:`f(s, n)` gives a node's
    value :math:`q(s, n)` and, for its j-th child, a branch value :math:`v_j(s, n)`, the largest
    value in that child's subtree. With :math:`\hat a` from a greedy descent at :math:`s'` and
    :math:`a'` the data's next action,

    .. math::

        Y_0 &= r + \gamma c\, \bar q(s', \hat a)
            - (1 - d) \sum_i \mathbb{1}(\hat a_i \ne a'_i) \\
        Y_k &= \max\big(Y_{k-1}, q(s, n_k), \max_j v_j(s, n_k)\big) \\
        L &= \alpha\, \mathbb{E} (q(s, a) - Y_0)^2 + \frac{1}{T} \sum \Big[ (q(s, a) - Y_0)^2
            + \sum_{k=1}^{K} \big(\delta k (v_{j_k}(s, n_k) - Y_{k-1})\big)^2 \Big]

    where :math:`n_0 = a, n_1, \ldots, n_K` is the way to the root, :math:`j_k` the place of
    :math:`n_{k-1}` among the children of :math:`n_k`, and T the number of all terms of a batch.
    Acting is a beam search in the tree.

    The defaults are the published code's, with what looks like slips there: terminal states are
    bootstrapped from, :math:`\gamma` is halved by c, gradients flow through later targets, and a
    branch value that is about to be corrected takes part in the maximum.
    `docs/explanation/differences.md` lists the switches, and what is another here. Neither rules
    nor masks are kept: both are refused.

    References:
        * Landers et al., BraVE: Offline Reinforcement Learning for Discrete Combinatorial Action
          Spaces, NeurIPS 2025, sections 4.1 to 4.3.

    Args:
        learning_rate: of the network, at first.
        lr_decay: factor of the learning rate after every step; another `lr_schedule` than
            `"constant"` takes its place.
        optim_factory: d3rlpy's factory of the optimizer.
        encoder_factory: d3rlpy's factory of the hidden layers.
        target_update_interval: steps between copies of the network to the target network.
        prioritized: `fit` draws transitions in proportion to their last error, otherwise as
            `trajectory_weights` say.
        td_weight: alpha, weight of the error of the logged action's own value.
        depth_weight: delta; errors of branch values count by delta times their distance from the
            logged action.
        bootstrap_factor: c, of the next value.
        stop_at_terminals: there is no next value after a terminal step.
        detach_targets: gradients do not flow through :math:`Y_k`.
        overwrite_branch_values: :math:`v_{j_k}` does not take part in the maximum of :math:`Y_k`,
            as in the paper's pseudo-code.
        beam_width: nodes that acting keeps.
        logged_actions: the tree's actions. Filled from the first dataset and saved with the model,
            like `nvec`. Others, which are drawn online, are learned from, but not chosen.
    """

    batch_size: int = 128
    gamma: float = 0.9
    n_steps: int = 20_000
    learning_rate: float = 2.5e-4
    lr_decay: float = 0.99995
    optim_factory: OptimizerFactory = make_optimizer_field()
    encoder_factory: EncoderFactory = encoder_field(
        lambda: VectorEncoderFactory(hidden_units=[256] * 7)
    )
    target_update_interval: int = 50
    prioritized: bool = True
    td_weight: float = 10.0
    depth_weight: float = 1.0
    bootstrap_factor: float = 0.5
    stop_at_terminals: bool = False
    detach_targets: bool = False
    overwrite_branch_values: bool = False
    beam_width: int = 5
    logged_actions: LoggedActions | None = logged_actions_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_rules(self)


def _refuse_rules(config: BraVEConfig) -> None:
    if config.rules:
        raise ValueError(
            "BraVE keeps no rules: its tree has the logged actions, whatever rules say of them. "
            f"Expected rules=[] or None, got {len(config.rules)}. Use SPINIDQL or DecQNBCQ, which "
            "keep them."
        )


@dataclasses.dataclass(frozen=True)
class BraVEModules(MultiDiscreteModules):
    """Networks and optimizer of BraVE."""

    network: BranchValues
    targ_network: BranchValues
    optim: OptimizerWrapper


class BraVEImpl(MultiDiscreteImpl):
    """The update of BraVE.

    Attributes:
        tree: of the logged actions; None until they are known.
        replay: where priorities of batches are kept during a run, if anywhere.
    """

    _modules: BraVEModules
    _config: BraVEConfig

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        hard_sync(self._modules.targ_network, self._modules.network)
        self.tree: ActionTree | None = None
        self.replay: PrioritizedReplay | None = None
        self.plant()

    def plant(self) -> None:
        """Makes the tree of the config's logged actions, if they are known."""
        if self.tree is None and self._config.logged_actions is not None:
            self.tree = ActionTree.of(self._config.logged_actions).to(self.device)

    def _evaluate(self, observations: Any) -> Evaluate:
        """Returns the online network's values of nodes in observations `(B, obs)`."""
        network, tree = self._modules.network, self.tree
        assert tree is not None

        def evaluate(rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = network(observations.index_select(0, rows), tree.actions[nodes])
            return outputs

        return evaluate

    @torch.no_grad()
    def compute_targets(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Returns `Y_0` `(B,)`."""
        observations: Any = batch.next_observations
        assert self.tree is not None
        nodes = greedy_descent(self.tree, self._evaluate(observations), len(observations))
        best = self.tree.actions[nodes]
        next_values: torch.Tensor = self._modules.targ_network(observations, best)[:, 0]
        not_over = 1.0 - batch.terminals.squeeze(-1)
        discount = self._config.bootstrap_factor * self._config.gamma ** batch.intervals.squeeze(-1)
        if self._config.stop_at_terminals:
            discount = discount * not_over
        changes = (best != batch.next_actions).sum(1)
        targets: torch.Tensor = batch.rewards.squeeze(-1) + discount * next_values
        return targets - not_over * changes

    def compute_branch_errors(
        self, batch: TorchMiniBatch, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the weighted errors of branch values and which exist, `(B, D)` each.

        Args:
            batch: transitions; actions that are not in the tree have no branch.
            targets: `Y_0`, `(B,)`.
        """
        config, tree = self._config, self.tree
        assert tree is not None
        nodes, places, is_used = tree.ancestors(tree.nodes_of(batch.actions))
        outputs = outputs_where(is_used, self._evaluate(batch.observations), nodes)
        branches = tree.branch_values(nodes, outputs)  # (B, D, C)
        corrected = outputs[..., 1:].gather(2, places[..., None])
        if config.overwrite_branch_values:
            branches = branches.scatter(2, places[..., None], -torch.inf)
        largest = torch.cat([outputs[..., :1], branches], dim=2).amax(2)
        largest = largest.masked_fill(~is_used, -torch.inf)
        later = torch.cat([targets[:, None], largest], dim=1).cummax(1).values[:, :-1]
        errors = corrected.squeeze(2) - (later.detach() if config.detach_targets else later)
        distance = torch.arange(1, tree.depth + 1, device=errors.device)
        return torch.where(is_used, config.depth_weight * distance * errors, 0.0), is_used

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of the network; `after_update` copies it to the target network."""
        targets = self.compute_targets(batch)
        errors = self._modules.network(batch.observations, batch.actions)[:, 0] - targets
        branch_errors, is_used = self.compute_branch_errors(batch, targets)
        td_loss = errors.square().mean()
        n_terms = len(errors) + is_used.sum()
        branch_loss = (errors.square().sum() + branch_errors.square().sum()) / n_terms
        loss = branch_loss + self._config.td_weight * td_loss
        if self.replay is not None and isinstance(batch, MiniBatch):
            self.replay.update(batch.rows, errors.detach())
        return {
            "loss": self.minimize(loss, self._modules.optim),
            "td_loss": td_loss.detach(),
            "branch_loss": branch_loss.detach(),
        }

    def after_update(self, grad_step: int) -> None:
        super().after_update(grad_step)
        for group in self._modules.optim.optim.param_groups:
            group["lr"] *= self._config.lr_decay
        if (grad_step + 1) % self._config.target_update_interval == 0:
            hard_sync(self._modules.targ_network, self._modules.network)

    def act(
        self,
        x: Any,
        extra: AnyRule | None = None,
        sample: bool = False,
        states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if extra is not None:
            self.require_rules()
        return super().act(x, None, sample)

    def require_rules(self) -> NoReturn:
        """Refuses rules and masks.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "BraVE keeps no masks and no rules: its tree has the logged actions, whatever masks "
            "say of them. Use SPINIDQL or DecQNBCQ, which keep them."
        )

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        assert self.tree is not None
        width = self._config.beam_width
        nodes = beam_search(self.tree, self._evaluate(x), x.shape[0], width)
        return self.tree.actions[nodes].long()

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        return self.inner_predict_best_action(x)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self._modules.network(x, action)[:, 0]
        return values

    @property
    def n_tokens(self) -> int:
        return self._config.beam_width


@dataclasses.dataclass()
class _BraVEArguments(BraVEConfig, Arguments):
    """What `BraVE(...)` takes."""


class BraVE(MultiDiscreteAlgo[BraVEImpl, BraVEConfig], name="spin_d3rlpy_brave"):
    """BraVE, for offline training; `fit_online` continues what `fit` began.

    `predict` and `sample_action` both take the best action that a beam search finds.
    """

    config_class = BraVEConfig
    impl_class: type[BraVEImpl] = BraVEImpl

    @takes(_BraVEArguments)
    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        config = self._config
        _refuse_rules(config)  # those of a dataset, too
        if config.logged_actions is not None:
            nvec = list(config.logged_actions.nvec)
            require_same_nvec(self._nvec, nvec, type(self).__name__, "its logged_actions")
        network = self.create_network(observation_shape)
        modules = BraVEModules(
            network=network,
            targ_network=self.create_network(observation_shape),
            optim=self.create_optim(
                config.optim_factory, network.named_modules(), config.learning_rate
            ),
        )
        self._impl = self.impl_class(observation_shape, modules, config, self._device)

    def create_network(self, observation_shape: Shape) -> BranchValues:
        """Returns a new network of action and branch values."""
        shape, slot_layout = cast_flat_shape(observation_shape), SlotLayout(self._nvec)
        return BranchValues(shape, self._config.encoder_factory, slot_layout).to(self._device)

    def _build_with_buffer(
        self, buffer: DeviceReplayBuffer, run_seconds: float | None = None
    ) -> None:
        if buffer.masks is not None:
            raise InvalidDatasetError(
                "BraVE keeps no masks: its tree has the logged actions of all states. Expected a "
                "dataset without masks. Use SPINIDQL or DecQNBCQ, which keep them."
            )
        if self._config.logged_actions is None:
            self._config.logged_actions = LoggedActions.of(buffer.actions.cpu(), self._nvec)
        super()._build_with_buffer(buffer, run_seconds)
        self.require_built().plant()

    def require_built(self, scalers: Sequence[str] = ()) -> BraVEImpl:
        """Returns the built implementation.

        Args:
            scalers: names of the scalers that must be fitted, as where it acts or learns.

        Raises:
            RuntimeError: it is not built, or there are no actions to choose from.
        """
        impl = super().require_built(scalers)
        if scalers and impl.tree is None:  # to act, to learn or to save it whole
            raise RuntimeError(
                f"{type(self).__name__} has no actions to choose from, because an environment has "
                "no data. Call fit or build_with_dataset first, or pass logged_actions."
            )
        return impl

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        if not self._config.prioritized:
            return super().batch_source(buffer)
        replay = self.require_built().replay = PrioritizedReplay(buffer)
        return replay

    def checkpointed_parts(self) -> Mapping[str, Any]:
        replay = self.require_built().replay
        return {**super().checkpointed_parts(), **({} if replay is None else {"replay": replay})}

    def forget_recording(self) -> None:
        super().forget_recording()
        if self._impl is not None:
            self._impl.replay = None
