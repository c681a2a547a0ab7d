"""Which values the fields of configs take: one table, for whoever makes a config or reads one.

A config calls `check_fields` when it is made, so that one in a file that anyone may have written is
checked likewise, before anything is built from it. Rules between fields are the configs' own.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
from collections.abc import Hashable
from typing import Any, cast, get_type_hints

from spin_d3rlpy.errors import require_fields, shown
from spin_d3rlpy.files.types import describe, fits

LARGEST = 1e12  # of numbers without a bound of their own; whole numbers that float64 holds exactly
LONGEST = 10_000  # entries of a list without a limit of its own
# Fields that have checks of their own, of the whole action space.
OTHERS = ("nvec", "layout", "rules")

# In mathematical notation; an empty end is LARGEST.
_COUNT, _SIZE, _POSITIVE, _AT_LEAST_0 = "[1, ]", "[1, 1e6]", "(0, ]", "[0, ]"
_SHARE, _PROBABILITY = "[0, 1]", "[0, 1)"
RANGES: dict[str, str] = {
    # all algorithms
    "batch_size": "[1, 1e9]",
    "imitation_batch_size": "[1, 1e9]",
    "gamma": _SHARE,
    "n_steps": _COUNT,
    "history": "[1, 10000]",
    "lr_warmup": _PROBABILITY,
    "learning_rate": _AT_LEAST_0,
    "actor_learning_rate": _AT_LEAST_0,
    "critic_learning_rate": _AT_LEAST_0,
    "ema_decay": _PROBABILITY,
    # critics
    "tau": _SHARE,
    "n_critics": "[1, 1000]",
    "monte_carlo_share": _SHARE,
    "weight_ess": "(0, 1)",
    "weight_temp": _AT_LEAST_0,
    "max_weight": _POSITIVE,
    "expectile": "(0, 1)",
    "lam": _POSITIVE,
    "alpha": _AT_LEAST_0,
    "action_flexibility": _SHARE,
    # branch values
    "lr_decay": "(0, 1]",
    "target_update_interval": _COUNT,
    "td_weight": _AT_LEAST_0,
    "depth_weight": _AT_LEAST_0,
    "bootstrap_factor": _SHARE,
    "beam_width": "[1, 1000]",
    # search and trust, which compares each discount with each support
    "n_action_samples": "[1, 1e6]",
    "candidate_temperature": _AT_LEAST_0,
    "value_temperature": _AT_LEAST_0,
    "search_sweeps": "[0, 1000]",
    "held_out_share": _PROBABILITY,
    "return_bins": "[0, 1000]",
    "overfitting_dropout": _PROBABILITY,
    "state_model_updates": _AT_LEAST_0,
    "short_gammas": _PROBABILITY,
    "stricter_flexibilities": "(0, 1]",
    # weights of trajectories
    "temperature": _POSITIVE,
    "min_episodes": _AT_LEAST_0,
    "least_persistence": "[-1, 1]",
    # sizes of networks
    "width": _SIZE,
    "n_blocks": "[1, 1000]",
    "n_heads": "[1, 1000]",
    "n_layers": "[1, 1000]",
    "n_state_tokens": _SIZE,
    "ffn_multiplier": "[1, 1000]",
    "head_hidden": _SIZE,
    "hidden_units": _SIZE,
    "slot_width": _SIZE,
    "state_width": _SIZE,
    "action_width": _SIZE,
    "lstm_width": _SIZE,
    "latent_size": _SIZE,
    "projection_size": _SIZE,
    "window": _SIZE,
    "dropout": _PROBABILITY,
    "attention_dropout": _PROBABILITY,
    # acting by a structure model
    "slots_per_pass": _COUNT,
    "entropy_bound": _AT_LEAST_0,
    "entries_per_update": _COUNT,
    # first stages
    "n_epochs": _AT_LEAST_0,
    "n_updates": _AT_LEAST_0,
    "max_updates": _AT_LEAST_0,
    "clip_grad_norm": _POSITIVE,
    "mask_prob": "(0, 1]",
    "mask_prob_max": "(0, 1]",
    "mask_token_share": _SHARE,
    "random_share": _SHARE,
    "full_mask_share": _SHARE,
    "validation_share": _PROBABILITY,
    "budget_share": _SHARE,
    "unweighted_share": _SHARE,
    "kl_weight": _AT_LEAST_0,
    "patience": _COUNT,
    "checkpoint_interval": _COUNT,
    "validation_interval": _COUNT,
    "log_interval": _COUNT,
    # trainings as folders
    "size": _COUNT,
    "n_steps_per_epoch": _COUNT,
    "seconds": _POSITIVE,
    "episodes": _COUNT,
    "seed": "[0, 4294967295]",
    "evaluation_seed": "[0, 4294967295]",
}
LENGTHS = {"short_gammas": 32, "stricter_flexibilities": 32, "hidden_units": 100}


def check_fields(config: object) -> None:
    """Checks types, ranges and lengths of a config's fields.

    A field of another package's class has any finite number that is not huge.

    Raises:
        ValueError: a field has another type or is out of range; the text names it.
    """
    for name, hint, bounds in _fields(cast(Hashable, type(config))):
        value = getattr(config, name)
        if not fits(value, hint):
            raise ValueError(f"Expected {name} to be {describe(hint)}, got {shown(value)}.")
        if isinstance(value, list | tuple):
            longest = LENGTHS.get(name, LONGEST)
            require_fields(config, **{name: (len(value) <= longest, f"of at most {longest:,}")})
        for number in value if isinstance(value, list | tuple) else [value]:
            if type(number) is not bool and isinstance(number, numbers.Real):
                require_fields(config, **{name: (bounds.holds(cast(float, number)), str(bounds))})


@dataclasses.dataclass(frozen=True)
class Interval:
    """Numbers between two ends, each of which belongs to them or does not."""

    low: float
    high: float
    with_low: bool
    with_high: bool

    @classmethod
    def parse(cls, text: str) -> Interval:
        """Reads mathematical notation, e.g. `[0, 1)`."""
        low, high = (part.strip() for part in text[1:-1].split(","))
        return cls(float(low), float(high or LARGEST), text[0] == "[", text[-1] == "]")

    def holds(self, number: float) -> bool:
        """Whether a number, which may be NaN or infinite, is in it."""
        above = number >= self.low if self.with_low else number > self.low
        return bool(above and (number <= self.high if self.with_high else number < self.high))

    def __str__(self) -> str:
        if self.high < LARGEST:
            ends = "[("[not self.with_low], "])"[not self.with_high]
            return f"in {ends[0]}{self.low:.10g}, {self.high:.10g}{ends[1]}"
        if self.low <= -LARGEST:
            return f"between -{LARGEST:g} and {LARGEST:g}"
        least = "of at least" if self.with_low else "above"
        return f"{least} {self.low:g} and at most {LARGEST:g}"


_ANY_NUMBER = Interval(-LARGEST, LARGEST, True, True)


@functools.cache
def _fields(cls: Hashable) -> list[tuple[str, Any, Interval]]:
    """Returns names, types and bounds of the fields that are checked here."""
    config_class = cast(type[Any], cls)
    hints = get_type_hints(config_class)
    return [
        (field.name, hints[field.name], _bounds(config_class, field.name))
        for field in dataclasses.fields(config_class)
        if field.name not in OTHERS
    ]


def _bounds(cls: type[Any], name: str) -> Interval:
    owner = next(c for c in cls.__mro__ if name in inspect.get_annotations(c))
    ours = owner.__module__.partition(".")[0] in ("spin_d3rlpy", "d3rlpy")
    return Interval.parse(RANGES[name]) if ours and name in RANGES else _ANY_NUMBER
