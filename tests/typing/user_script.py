"""A user's script: mypy knows the fields of algorithms, policies and configs.

Every `type: ignore` below is a mistake that mypy finds: strict settings report unused ones.
"""

from __future__ import annotations

from collections.abc import Callable

from spin_d3rlpy import (
    SPIN,
    SPINIDQL,
    SPINIQL,
    Factored,
    FactoredBC,
    FactoredIQL,
    IQLConfig,
    PretrainingConfig,
    TransformerConfig,
)


def main() -> None:
    """Uses fields of the objective and of the policy."""
    policy = SPIN(
        transformer=TransformerConfig(width=64),
        pretraining=PretrainingConfig(max_updates=100),
    )
    config = IQLConfig(batch_size=512, expectile=0.9, policy=policy)
    width: int = config.policy.transformer.width
    updates: int | None = config.policy.pretraining.max_updates
    assert (width, updates) == (64, 100)
    algo = SPINIQL(config=config, device="cpu:0")
    assert algo.config.policy.train_queries
    algo = SPINIQL(recipe="tuned", weight_temp=5.0)
    share: float = algo.config.policy.pretraining.budget_share
    assert 0.0 < share < 1.0
    searching = SPINIDQL(recipe="tuned", search="always")
    order: str | None = searching.config.policy.order
    assert order is None
    assert FactoredIQL().config.policy.entities is not None


MISTAKES: list[Callable[[], object]] = [
    lambda: SPINIQL(batch_sze=512),  # type: ignore[call-arg]
    lambda: SPINIQL(lam=0.3),  # type: ignore[call-arg]
    lambda: SPINIQL(transformer=TransformerConfig()),  # type: ignore[call-arg]
    lambda: SPIN(sizes=3),  # type: ignore[call-arg]
    lambda: SPIN(query_init="zeros"),  # type: ignore[arg-type]
    lambda: IQLConfig(policy=3),  # type: ignore[type-var]
    lambda: FactoredBC(expectile=0.9),  # type: ignore[call-arg]
    lambda: IQLConfig(policy=Factored()).policy.pretraining,  # type: ignore[attr-defined]
    lambda: SPINIQL().fit("spin/none", n_step=3),  # type: ignore[call-arg]
]
