"""A user's script: mypy knows the fields of algorithms and configs.

Every `type: ignore` below is a mistake that mypy finds: strict settings report unused ones.
"""

from __future__ import annotations

from collections.abc import Callable

from spin_d3rlpy import (
    SPINIQL,
    FactoredBC,
    FactoredIQLConfig,
    PretrainingConfig,
    SPINIQLConfig,
    TransformerConfig,
)


def main() -> None:
    """Uses fields of the objective and of the policy."""
    config = SPINIQLConfig(
        batch_size=512,
        expectile=0.9,
        transformer=TransformerConfig(width=64),
        pretraining=PretrainingConfig(max_updates=100),
    )
    width: int = config.transformer.width
    updates: int | None = config.pretraining.max_updates
    assert (width, updates) == (64, 100)
    algo = SPINIQL(config, device="cpu:0")
    assert algo.config.actor_encoder_factory.train_queries
    algo = SPINIQL(recipe="tuned", frozen_dropout=True, weight_temp=5.0)
    share: float = algo.config.pretraining.budget_share
    assert 0.0 < share < 1.0
    config.transformer = TransformerConfig(width=32)
    assert config.actor_encoder_factory.transformer.width == 32


MISTAKES: list[Callable[[], object]] = [
    lambda: SPINIQL(batch_sze=512),  # type: ignore[call-arg]
    lambda: SPINIQL(lam=0.3),  # type: ignore[call-arg]
    lambda: SPINIQLConfig(sizes=3),  # type: ignore[call-arg]
    lambda: SPINIQLConfig(query_init="zeros"),  # type: ignore[arg-type]
    lambda: FactoredBC(expectile=0.9),  # type: ignore[call-arg]
    lambda: FactoredIQLConfig().pretraining,  # type: ignore[attr-defined]
]
