"""Whole actions and a structure model: samples slot by slot, completions, log-probabilities."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch.nn.functional import cross_entropy

from spin_d3rlpy.asm.conditions import (
    ArrayLike,
    Order,
    as_choices_of,
    as_conditions,
    as_mask,
    as_noise,
    as_order,
    require_a_choice,
)
from spin_d3rlpy.asm.decoding import OrderName, Passes, decode
from spin_d3rlpy.asm.rules import AnyRule, conditions_of
from spin_d3rlpy.images import encode_images, encoder_of
from spin_d3rlpy.nvec import SlotLayout, gumbel_noise

# Rows that go through the model at once.
_ROWS_AT_ONCE = 4096
_ENTRIES_AT_ONCE = 2**25  # of the largest array: 128 MB in float32


class ModelOfSlots(Protocol):
    """What all models and policies of slots have."""

    slot_layout: SlotLayout
    training: bool

    def train(self, mode: bool = True) -> Any: ...


class MaskedModel(ModelOfSlots, Protocol):
    """Interface of a masked model, such as `ActionStructureModel`."""

    mask_ids: torch.Tensor

    def __call__(self, observations: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor: ...

    def slot_by_slot(self, observations: torch.Tensor) -> Any: ...


class LogLikelihood(NamedTuple):
    """Masked pseudo-log-likelihood of actions."""

    per_slot: torch.Tensor  # (B, N), `log p(a_i | s, all other slots)`
    total: torch.Tensor  # (B,), the sum


def in_parts(
    model: ModelOfSlots, compute: Callable[..., torch.Tensor], *rows: torch.Tensor | None
) -> torch.Tensor:
    """Computes something row by row, without dropout, as many rows at a time as fit in memory."""
    n = max(len(x) for x in rows if x is not None)
    config = getattr(model, "config", None)  # some models have none
    entries = 1 if config is None else config.entries_a_row(model.slot_layout.n_slots)
    at_once = max(1, min(_ROWS_AT_ONCE, _ENTRIES_AT_ONCE // entries))
    was_training = model.training
    if was_training:  # asking every layer takes a tenth of a small model's decision
        model.train(False)
    try:
        parts = [slice(i, i + at_once) for i in range(0, max(1, n), at_once)]
        return torch.cat([compute(*(None if x is None else x[p] for x in rows)) for p in parts])
    finally:
        if was_training:
            model.train(True)


@torch.no_grad()
def sample(
    asm: MaskedModel,
    observations: torch.Tensor,
    n: int = 1,
    temperature: float = 1.0,
    given: ArrayLike | None = None,
    allowed: ArrayLike | AnyRule | Sequence[AnyRule] | None = None,
    order: Order = "random",
    slots_per_pass: int = 1,
    noise: ArrayLike | None = None,
    entropy_bound: float | None = None,
    rule: AnyRule | None = None,
    states: torch.Tensor | None = None,
) -> torch.Tensor:
    r"""Samples n actions per state `(n, B, N)`, int64, one slot after the other.

    .. math:: a_{\sigma(t)} \sim p(\cdot \, | \, s, a_{\sigma(1)}, .., a_{\sigma(t-1)})^{1 / T}

    Without dropout, with torch's global random numbers. What is `given`, `allowed`, the order and
    the noise may be tensors, NumPy arrays or nested lists.

    References:
        * Uria et al., A Deep and Tractable Density Estimator, 2014, section 3.
        * Hoogeboom et al., Autoregressive Diffusion Models, 2022, algorithm 1 and section 3.2
          (several slots a pass).
        * Ben-Hamu et al., Accelerated Sampling from Masked Diffusion Models via Entropy Bounded
          Unmasking, 2025 (`entropy_bound`).
        * Kim et al., Train for the Worst, Plan for the Best, 2025 (`"margin"`).

    Args:
        asm: a model that was pre-trained with `masking="any_order"`.
        observations: `(B, obs)`, scaled as in pre-training.
        n: actions per state.
        temperature: T, finite; 0 takes the most likely choice.
        given: `(B, N)` integer choices that are made already, -1 where open.
        allowed: a bool mask `(N, K)` or `(B, N, K)`, True where a choice may be made, also flat
            `(S,)` or `(B, S)`, or a rule or several (see `spin_d3rlpy.asm.rules`), which all hold.
            What is `given` must keep to it.
        order: `"random"`, one for each sample; `"slots"`, from the first to the last;
            `"confidence"`, at each step the slot with the most likely choice; `"margin"`, the one
            whose best choice leads most over its second best by probability, `"regret"` by
            log-probability; or the slots in a fixed order.
        slots_per_pass: slots that are chosen from one pass of the network. Above 1 they are
            independent given the earlier ones, which is faster and not exact; rules still hold.
        noise: Gumbel noise `(n, B, S)` by which choices are drawn; fresh noise if None.
        entropy_bound: instead of `slots_per_pass`: as many slots a pass as keep the sum of their
            entropies (nats), without the largest, at most here; that sum bounds what is lost by
            choosing them independently. The surest slots of a pass come first.
        rule: holds in addition to what is `allowed`.
        states: observations `(B, obs)` as rules see them, unscaled; `observations` if None.

    Raises:
        InvalidActionSpaceError: `given` holds neither choices of this action space nor -1.
        NoAllowedChoiceError: nothing is allowed for an open slot in view of the choices made, or a
            given choice is not allowed.
        ValueError: another argument is out of range, or of another type or shape.
    """
    slots, batch = asm.slot_layout.n_slots, len(observations)
    is_possible = temperature >= 0.0 and math.isfinite(temperature)
    if entropy_bound is not None and not (entropy_bound >= 0.0 and slots_per_pass == 1):
        raise ValueError(
            "Expected an entropy_bound of at least 0 nats, in place of slots_per_pass; got "
            f"entropy_bound={entropy_bound}, slots_per_pass={slots_per_pass}."
        )
    if n < 1 or slots_per_pass < 1 or not is_possible:
        raise ValueError(
            "Expected n and slots_per_pass of at least 1 and a finite temperature of at least 0; "
            f"got n={n}, slots_per_pass={slots_per_pass}, temperature={temperature}."
        )
    slot_order = as_order(order, slots)
    seen = observations if states is None else states
    given, mask, rule = as_conditions(observations, asm.slot_layout, given, allowed, rule, seen)
    if mask is not None:
        mask = mask.repeat(n, 1, 1)
    if noise is not None:
        shape = (n, batch, asm.slot_layout.total)
        noise = as_noise(noise, shape, observations.device).flatten(0, 1)

    def draw(
        x: torch.Tensor,
        given: torch.Tensor,
        states: torch.Tensor,
        mask: torch.Tensor | None,
        noise: torch.Tensor | None,
    ) -> torch.Tensor:
        is_greedy = temperature == 0.0
        return decode(
            asm.slot_by_slot(x),
            _ranks(slot_order, given),
            conditions_of(mask, rule, states),
            None if is_greedy else gumbel_noise if noise is None else noise,
            given=given,
            temperature=1.0 if is_greedy else temperature,
            passes=Passes(slots_per_pass, entropy_bound=entropy_bound),
        )

    if encoder_of(asm) is not None:  # once, not for each sample
        observations = in_parts(asm, functools.partial(encode_images, asm), observations)
    rows = observations.repeat(n, 1), given.repeat(n, 1), seen.repeat(n, 1)
    return in_parts(asm, draw, *rows, mask, noise).reshape(n, batch, slots)


def _ranks(
    order: OrderName | Literal["random"] | list[int], actions: torch.Tensor
) -> OrderName | torch.Tensor:
    """Returns when each slot of actions `(B, N)` is chosen, smallest first, where that is known."""
    if order == "random":
        return torch.rand(actions.shape, device=actions.device)
    n_slots = actions.shape[1]
    if order == "slots":  # each in view of all that is given
        order = list(range(n_slots))
    if isinstance(order, str):
        return order
    ranks = torch.empty(n_slots, device=actions.device)
    ranks[order] = torch.arange(n_slots, dtype=ranks.dtype, device=actions.device)
    return ranks.expand_as(actions)


def complete(
    asm: MaskedModel, observations: torch.Tensor, partial_actions: ArrayLike
) -> torch.Tensor:
    """Fills in the open slots, each time the most likely choice of the surest slot.

    `partial_actions` are `(B, N)` choices, -1 where open; the result is `(B, N)` int64. For the
    arguments and errors see `sample`.
    """
    return sample(asm, observations, temperature=0.0, given=partial_actions, order="confidence")[0]


@torch.no_grad()
def log_prob(
    asm: MaskedModel,
    observations: torch.Tensor,
    actions: ArrayLike,
    n_orders: int = 8,
    allowed: ArrayLike | None = None,
) -> torch.Tensor:
    r"""Log-probability `(B,)` of whole actions `(B, N)` under sampling in random order.

    .. math:: \log \frac{1}{|\Sigma|} \sum_{\sigma \in \Sigma}
        \prod_t p(a_{\sigma(t)} | s, a_{\sigma(1)}, .., a_{\sigma(t-1)})

    Exact if `n_orders` is at least N!: then all orders are taken. Otherwise they are `n_orders`
    random ones, the same each time. The model and its observations are as of `sample`.

    Args:
        asm: a model that was pre-trained with `masking="any_order"`.
        observations: `(B, obs)`, scaled as in pre-training.
        actions: `(B, N)`.
        n_orders: orders that are averaged over.
        allowed: a bool mask `(N, K)` or `(B, N, K)`, with which the actions were sampled: each
            slot's probabilities are of what it allows. What it forbids has `-inf`.

    Raises:
        InvalidActionSpaceError: the actions are not choices of this action space.
        NoAllowedChoiceError: the mask leaves a slot without a choice.
        ValueError: `n_orders` is less than 1, or a mask of another type or shape.
    """
    whole = as_choices_of(asm.slot_layout, observations, actions)
    if n_orders < 1:
        raise ValueError(f"Expected n_orders of at least 1, got {n_orders}.")
    slots = asm.slot_layout.n_slots
    mask = None
    if allowed is not None:
        mask = as_mask(allowed, len(whole), asm.slot_layout, whole.device)
        require_a_choice(mask & ~asm.slot_layout.padding)
    if slots < 12 and n_orders >= math.factorial(slots):
        orders = list(itertools.permutations(range(slots)))
    else:
        drawing = torch.Generator().manual_seed(0)
        drawn = (torch.randperm(slots, generator=drawing, device="cpu") for _ in range(n_orders))
        orders = [tuple(order.tolist()) for order in drawn]

    def score(x: torch.Tensor, chosen: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = encode_images(asm, x)
        totals = [slot_log_probs(asm, x, chosen, order, mask).sum(1) for order in orders]
        return torch.stack(totals).logsumexp(0) - math.log(len(orders))

    return in_parts(asm, score, observations, whole, mask)


def slot_log_probs(
    asm: MaskedModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    order: Iterable[int],
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probability `(B, N)` of each slot's choice, if slots are sampled in this order.

    The sum over slots is that of the whole actions `(B, N)`. With a mask `(B, N, K)` it is of what
    may be chosen.
    """
    chain = asm.slot_by_slot(observations)
    columns: dict[int, torch.Tensor] = {}
    for slot in order:
        choice, logits = actions[:, slot], chain.logits(slot)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, slot, : logits.shape[1]], -torch.inf)
        columns[slot] = -cross_entropy(logits, choice, reduction="none")
        chain.choose(slot, choice)
    return torch.stack([columns[slot] for slot in sorted(columns)], dim=1)


@torch.no_grad()
def log_likelihood(
    asm: MaskedModel, observations: torch.Tensor, actions: ArrayLike
) -> LogLikelihood:
    r"""Log-probability of each slot given the state and the other slots.

    .. math:: \sum_i \log p(a_i | s, a_{-i})

    Low for a slot that the data never combine with the others, even if it is common by
    itself. Without dropout, for observations `(B, obs)` scaled as in pre-training and actions
    `(B, N)`. The model's method of this name scales them itself, as those of the functions below.

    References:
        * Salazar et al., Masked Language Model Scoring, 2020, equation 2.
    """
    whole = as_choices_of(asm.slot_layout, observations, actions)

    def score(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        x, columns = encode_images(asm, x), []
        for slot in range(asm.slot_layout.n_slots):
            tokens = chosen.clone()
            tokens[:, slot] = asm.mask_ids[slot]
            log_p = asm.slot_layout.split(asm(x, tokens)).log_softmax(-1)[:, slot]
            columns.append(log_p.gather(1, chosen[:, slot : slot + 1]))
        return torch.cat(columns, dim=1)

    per_slot = in_parts(asm, score, observations, whole)
    return LogLikelihood(per_slot, per_slot.sum(1))
