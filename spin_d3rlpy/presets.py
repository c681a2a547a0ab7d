"""Named sizes: what a configuration should be for a given machine and patience."""

from __future__ import annotations

import dataclasses

from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.precision import Precision


@dataclasses.dataclass(frozen=True)
class Preset:
    """Sizes and budgets that belong together.

    Args:
        transformer: sizes of ASM, SPIN and SAINT.
        pretraining: stage 1.
        n_steps: gradient steps of stage 2 (and of algorithms without a stage 1).
        n_steps_per_epoch: gradient steps between evaluations.
        batch_size: rows of a mini-batch in stage 2.
        precision: number format of stage 2, see `spin_d3rlpy.precision.autocast`.
    """

    transformer: TransformerConfig
    pretraining: PretrainingConfig
    n_steps: int
    n_steps_per_epoch: int
    batch_size: int = 256
    precision: Precision = "float32"


PRESETS: dict[str, Preset] = {
    # The published settings, which are also the defaults of the configs.
    "paper": Preset(
        transformer=TransformerConfig(),
        pretraining=PretrainingConfig(),
        n_steps=1_000_000,
        n_steps_per_epoch=5_000,
    ),
    # Minutes on two CPU cores.
    "cpu-small": Preset(
        transformer=TransformerConfig(
            width=64, n_blocks=2, head_hidden=64, dropout=0.0, attention_dropout=0.0
        ),
        pretraining=PretrainingConfig(max_updates=1_000, precision="auto"),
        n_steps=5_000,
        n_steps_per_epoch=1_000,
        precision="auto",
    ),
    # Seconds: for trying out a script, not for results.
    "smoke": Preset(
        transformer=TransformerConfig(width=16, n_blocks=1, head_hidden=16),
        pretraining=PretrainingConfig(batch_size=256, max_updates=20),
        n_steps=40,
        n_steps_per_epoch=20,
        batch_size=64,
    ),
}


def get_preset(name: str) -> Preset:
    """Returns a preset by name.

    Raises:
        ValueError: there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"Expected a preset of {', '.join(PRESETS)}; got {name!r}.")
    return PRESETS[name]
