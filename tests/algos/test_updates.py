"""Two steps of every objective against a plain float64 computation written from the formulas.

Every optimizer is SGD, so equal networks after a step mean equal gradients of every parameter.
The plain computation goes slot by slot and knows nothing of flat layouts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from d3rlpy.optimizers import SGDFactory
from d3rlpy.torch_utility import TorchMiniBatch
from torch import nn

from spin_d3rlpy import (
    AutoregressiveAWAC,
    AutoregressiveBCQ,
    DecQN,
    DecQNBCQ,
    DecQNCQL,
    DecQNIQL,
    DecQNOneStep,
    FactoredAWAC,
    FactoredBC,
    FactoredBCQ,
    FactoredIQL,
)
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    has_field,
    learning_rates,
    new_algorithm,
    optimizers,
    random_buffer,
    small_networks,
    tiny_fields,
)

LR, GAMMA, POLYAK = 0.05, 0.9, 0.1
EXPECTILE, WEIGHT_TEMP, MAX_WEIGHT, LAM, FLEXIBILITY, ALPHA = 0.8, 2.0, 1.3, 0.7, 0.6, 0.4
Slots = list[torch.Tensor]  # one tensor of each slot, (B, m_i) or (B,)


class Plain:
    """Copies of an algorithm's networks in float64, and the formulas on them."""

    def __init__(self, modules: Any, decomposition: str) -> None:
        self.w: dict[str, dict[str, torch.Tensor]] = {
            name: {k: v.detach().double().requires_grad_() for k, v in network.named_parameters()}
            for name, network in modules.get_torch_modules().items()
        }
        self.divisor = len(NVEC) if decomposition == "mean" else 1

    def mlp(self, name: str, x: torch.Tensor, prefix: str = "") -> torch.Tensor:
        """Linear, ReLU, linear; weights in the order they were registered."""
        w1, b1, w2, b2 = (v for k, v in self.w[name].items() if k.startswith(prefix))
        return torch.clamp(x @ w1.T + b1, min=0) @ w2.T + b2

    def utilities(self, name: str, member: int, s: torch.Tensor) -> Slots:
        return list(self.mlp(name, s, f"{member}.").split(NVEC, dim=1))

    def mean_utilities(self, name: str, s: torch.Tensor) -> Slots:
        both = zip(self.utilities(name, 0, s), self.utilities(name, 1, s), strict=True)
        return [(first + second) / 2 for first, second in both]

    def joint(self, slots: Slots) -> torch.Tensor:
        total = torch.zeros_like(slots[0])
        for slot in slots:
            total = total + slot
        return total / self.divisor

    def q(self, name: str, member: int, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(s))
        u = self.utilities(name, member, s)
        return self.joint([u[i][rows, a[:, i]] for i in range(len(NVEC))])

    def min_q(self, name: str, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.minimum(self.q(name, 0, s, a), self.q(name, 1, s, a)).detach()

    def probs(self, s: torch.Tensor) -> Slots:
        exps = [torch.exp(x) for x in self.mlp("policy", s).split(NVEC, dim=1)]
        return [e / e.sum(1, keepdim=True) for e in exps]

    def supported(self, s: torch.Tensor) -> list[torch.Tensor]:
        return [p >= FLEXIBILITY * p.max(1, keepdim=True).values for p in self.probs(s)]

    def log_prob(self, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(s))
        p = self.probs(s)
        total = torch.zeros(len(s), dtype=torch.float64)
        for i in range(len(NVEC)):
            total = total + torch.log(p[i][rows, a[:, i]])
        return total

    def value(self, name: str, s: torch.Tensor) -> torch.Tensor:
        return self.mlp(name, s)[:, 0]

    def descend(self, name: str, loss: torch.Tensor) -> float:
        parameters = list(self.w[name].values())
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data -= LR * g
        return loss.item()

    def polyak(self, target: str, online: str) -> None:
        for key, value in self.w[target].items():
            value.data = (1 - POLYAK) * value.data + POLYAK * self.w[online][key].data


@dataclasses.dataclass
class Rows:
    """A mini-batch in float64, with the discount of each row's next value."""

    s: torch.Tensor
    a: torch.Tensor
    r: torch.Tensor
    discount: torch.Tensor
    s2: torch.Tensor


def squared_errors(plain: Plain, rows: Rows, y: torch.Tensor) -> torch.Tensor:
    errors = [((plain.q("q_funcs", e, rows.s, rows.a) - y.detach()) ** 2).mean() for e in (0, 1)]
    return errors[0] + errors[1]


def weighted(plain: Plain, rows: Rows, exponent: torch.Tensor) -> torch.Tensor:
    weight = torch.clamp(torch.exp(exponent.detach()), max=MAX_WEIGHT)
    assert (weight == MAX_WEIGHT).any()  # the clip is seen to work
    assert (weight < MAX_WEIGHT).any()
    return -(weight * plain.log_prob(rows.s, rows.a)).mean()


def expectile(u: torch.Tensor) -> torch.Tensor:
    return torch.where(u < 0, (1 - EXPECTILE) * u**2, EXPECTILE * u**2).mean()


def iql(plain: Plain, rows: Rows) -> dict[str, float]:
    u = plain.min_q("targ_q_funcs", rows.s, rows.a) - plain.value("value_func", rows.s)
    value_loss = plain.descend("value_func", expectile(u))
    y = rows.r + rows.discount * plain.value("value_func", rows.s2)
    critic_loss = plain.descend("q_funcs", squared_errors(plain, rows, y))
    actor_loss = plain.descend("policy", weighted(plain, rows, WEIGHT_TEMP * u))
    plain.polyak("targ_q_funcs", "q_funcs")
    return {"value_loss": value_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}


def awac(plain: Plain, rows: Rows) -> dict[str, float]:
    y = rows.r + rows.discount * plain.value("targ_value_func", rows.s2)
    critic_loss = plain.descend("q_funcs", squared_errors(plain, rows, y))
    advantage = plain.min_q("q_funcs", rows.s, rows.a) - plain.value("value_func", rows.s)
    actor_loss = plain.descend("policy", weighted(plain, rows, advantage / LAM))
    expected = []
    for e in (0, 1):
        u, p = plain.utilities("targ_q_funcs", e, rows.s), plain.probs(rows.s)
        expected.append(plain.joint([(p[i] * u[i]).sum(1) for i in range(len(NVEC))]))
    v_target = torch.minimum(*expected).detach()
    error = v_target - plain.value("value_func", rows.s)
    value_loss = plain.descend("value_func", (error**2).mean())
    plain.polyak("targ_q_funcs", "q_funcs")
    plain.polyak("targ_value_func", "value_func")
    return {"critic_loss": critic_loss, "actor_loss": actor_loss, "value_loss": value_loss}


def bcq(plain: Plain, rows: Rows) -> dict[str, float]:
    support = plain.supported(rows.s2)
    assert any((~s).any() for s in support)
    best = []
    for e in (0, 1):
        u = plain.utilities("targ_q_funcs", e, rows.s2)
        maxima = [torch.where(support[i], u[i], -torch.inf).max(1).values for i in range(len(NVEC))]
        best.append(plain.joint(maxima))
    y = rows.r + rows.discount * torch.minimum(*best)
    critic_loss = plain.descend("q_funcs", squared_errors(plain, rows, y))
    actor_loss = plain.descend("policy", -plain.log_prob(rows.s, rows.a).mean())
    plain.polyak("targ_q_funcs", "q_funcs")
    return {"critic_loss": critic_loss, "actor_loss": actor_loss}


def bc(plain: Plain, rows: Rows) -> dict[str, float]:
    return {"loss": plain.descend("policy", -plain.log_prob(rows.s, rows.a).mean())}


def huber(plain: Plain, rows: Rows, next_values: torch.Tensor) -> torch.Tensor:
    y = (rows.r + rows.discount * next_values).detach()
    total = torch.zeros((), dtype=torch.float64)
    for e in (0, 1):
        error = plain.q("q_funcs", e, rows.s, rows.a) - y
        total = total + torch.where(error.abs() < 1, error**2 / 2, error.abs() - 0.5).mean()
    return total


def double_q(plain: Plain, s: torch.Tensor, support: list[torch.Tensor] | None) -> torch.Tensor:
    online, target = plain.mean_utilities("q_funcs", s), plain.mean_utilities("targ_q_funcs", s)
    if support is not None:
        online = [torch.where(k, u, -torch.inf) for k, u in zip(support, online, strict=True)]
    rows = torch.arange(len(s))
    return plain.joint([target[i][rows, online[i].argmax(1)] for i in range(len(NVEC))])


def decqn(plain: Plain, rows: Rows) -> dict[str, float]:
    loss = plain.descend("q_funcs", huber(plain, rows, double_q(plain, rows.s2, None)))
    plain.polyak("targ_q_funcs", "q_funcs")
    return {"loss": loss}


def decqn_cql(plain: Plain, rows: Rows) -> dict[str, float]:
    loss = huber(plain, rows, double_q(plain, rows.s2, None))
    b = torch.arange(len(rows.s))
    for e in (0, 1):
        u = plain.utilities("q_funcs", e, rows.s)
        for i in range(len(NVEC)):
            gap = torch.log(torch.exp(u[i]).sum(1)) - u[i][b, rows.a[:, i]]
            loss = loss + ALPHA * gap.mean() / len(NVEC)
    loss_value = plain.descend("q_funcs", loss)
    plain.polyak("targ_q_funcs", "q_funcs")
    return {"loss": loss_value}


def imitate(plain: Plain, rows: Rows, loss: torch.Tensor) -> dict[str, float]:
    metrics = {"loss": plain.descend("q_funcs", loss)}
    plain.polyak("targ_q_funcs", "q_funcs")
    metrics["actor_loss"] = plain.descend("policy", -plain.log_prob(rows.s, rows.a).mean())
    return metrics


def decqn_bcq(plain: Plain, rows: Rows) -> dict[str, float]:
    support = plain.supported(rows.s2)
    assert any((~s).any() for s in support)
    return imitate(plain, rows, huber(plain, rows, double_q(plain, rows.s2, support)))


def decqn_one_step(plain: Plain, rows: Rows) -> dict[str, float]:
    u, p = plain.mean_utilities("targ_q_funcs", rows.s2), plain.probs(rows.s2)
    next_values = plain.joint([(p[i] * u[i]).sum(1) for i in range(len(NVEC))])
    return imitate(plain, rows, huber(plain, rows, next_values))


def decqn_iql(plain: Plain, rows: Rows) -> dict[str, float]:
    q = [plain.q("targ_q_funcs", e, rows.s, rows.a).detach() for e in (0, 1)]
    u = (q[0] + q[1]) / 2 - plain.value("value_func", rows.s)
    value_loss = plain.descend("value_func", expectile(u))
    next_values = plain.value("value_func", rows.s2)
    return {"value_loss": value_loss, **imitate(plain, rows, huber(plain, rows, next_values))}


FORMULAS: dict[Any, Callable[[Plain, Rows], dict[str, float]]] = {
    FactoredIQL: iql,
    FactoredAWAC: awac,
    FactoredBCQ: bcq,
    FactoredBC: bc,
    DecQN: decqn,
    DecQNCQL: decqn_cql,
    DecQNBCQ: decqn_bcq,
    DecQNOneStep: decqn_one_step,
    DecQNIQL: decqn_iql,
}


def make(algo_class: Any, decomposition: str) -> Any:
    torch.manual_seed(7)
    wanted: dict[str, Any] = {
        "gamma": GAMMA,
        "tau": POLYAK,
        "expectile": EXPECTILE,
        "weight_temp": WEIGHT_TEMP,
        "max_weight": MAX_WEIGHT,
        "lam": LAM,
        "action_flexibility": FLEXIBILITY,
        "alpha": ALPHA,
        "decomposition": decomposition,
        "observation_scaler": None,
    }
    algo = new_algorithm(
        algo_class,
        **small_networks(algo_class, 13),
        **optimizers(algo_class, SGDFactory()),
        **learning_rates(algo_class, LR),
        **{name: value for name, value in wanted.items() if has_field(algo_class, name)},
    )
    algo.build_with_dataset(random_buffer())
    # Targets that differ from the online networks, so that mixing them up shows.
    with torch.no_grad():
        for name, network in algo.impl.modules.get_torch_modules().items():
            for p in network.parameters() if name.startswith("targ") else ():
                p.add_(torch.randn_like(p) * 0.1)
    return algo


def random_batch(n: int = 211) -> tuple[TorchMiniBatch, Rows]:
    batch = random_buffer().sample_transition_batch(n)
    # Returns over several steps, as the behavior trainer's replay has them.
    batch = dataclasses.replace(batch, intervals=torch.randint(1, 4, (n, 1)).float())
    assert batch.terminals.any()
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.next_observations, torch.Tensor)
    discount = GAMMA ** batch.intervals[:, 0].double() * (1 - batch.terminals[:, 0].double())
    rows = Rows(
        batch.observations.double(),
        batch.actions.long(),
        batch.rewards[:, 0].double(),
        discount,
        batch.next_observations.double(),
    )
    return batch, rows


@pytest.mark.parametrize("decomposition", ["sum", "mean"])
@pytest.mark.parametrize("algo_class", FORMULAS)
def test_losses_and_all_networks_after_two_steps_equal_the_formulas(
    algo_class: Any, decomposition: str
) -> None:
    algo = make(algo_class, decomposition)
    plain = Plain(algo.impl.modules, decomposition)
    for _ in range(2):
        batch, rows = random_batch()
        expected, found = FORMULAS[algo_class](plain, rows), algo.update(batch)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-5), name
    for name, network in algo.impl.modules.get_torch_modules().items():
        assert isinstance(network, nn.Module)
        for key, parameter in network.named_parameters():
            torch.testing.assert_close(
                parameter.double(), plain.w[name][key], rtol=1e-4, atol=1e-6, msg=f"{name}.{key}"
            )


# -- acting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algo_class", [DecQN, DecQNBCQ, DecQNIQL, DecQNOneStep, FactoredBCQ])
def test_acting_equals_the_formulas(algo_class: Any) -> None:
    algo = make(algo_class, "mean")
    for _ in range(3):
        algo.update(random_batch()[0])
    plain = Plain(algo.impl.modules, "mean")
    x = torch.randn(53, OBSERVATION_SIZE)
    s = x.double()
    if algo_class is FactoredBCQ:
        both = (plain.utilities("q_funcs", 0, s), plain.utilities("q_funcs", 1, s))
        scores = [torch.minimum(u, v) for u, v in zip(*both, strict=True)]
    else:
        scores = plain.mean_utilities("q_funcs", s)
    greedy = torch.stack([u.argmax(1) for u in scores], 1)
    if algo_class in (DecQNBCQ, FactoredBCQ):
        support = plain.supported(s)
        scores = [torch.where(k, u, -torch.inf) for k, u in zip(support, scores, strict=True)]
    elif algo_class is not DecQN:
        scores = [u / LAM + torch.log(p) for u, p in zip(scores, plain.probs(s), strict=True)]
    expected = torch.stack([u.argmax(1) for u in scores], 1)
    assert (algo_class is DecQN) == torch.equal(expected, greedy)  # it makes a difference
    assert algo.predict(x.numpy()).tolist() == expected.tolist()


# -- policies whose slots depend on each other -----------------------------------------------


def all_actions() -> torch.Tensor:
    return torch.tensor(list(itertools.product(*(range(m) for m in NVEC))))


def autoregressive(algo_class: Any, n_action_samples: int) -> tuple[Any, torch.Tensor, Any]:
    """Returns an algorithm, states, and every action's target values, `(E, 30, B)`."""
    torch.manual_seed(8)
    algo = new_algorithm(algo_class, n_action_samples=n_action_samples, **tiny_fields(algo_class))
    algo.build_with_dataset(random_buffer())
    modules = algo.impl.modules
    modules.set_eval()
    with torch.no_grad():
        for p in modules.targ_q_funcs.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        x = torch.randn(3, OBSERVATION_SIZE)
        values = torch.stack(
            [algo.impl.q_values(modules.targ_q_funcs, x, a.expand(3, -1)) for a in all_actions()],
            dim=1,
        )
    return algo, x, values


def test_awac_estimates_the_expectation_under_an_autoregressive_policy() -> None:
    algo, x, values = autoregressive(AutoregressiveAWAC, n_action_samples=20_000)
    with torch.no_grad():
        probs = torch.stack(
            [algo.impl.policy.log_prob(x, a.expand(3, -1)).exp() for a in all_actions()]
        )
        found = algo.impl.compute_expected_values(x, x)
    # The mean of minima, as published, not the minimum of means, which is higher.
    torch.testing.assert_close(found, (probs * values.amin(0)).sum(0), rtol=0, atol=0.02)
    assert ((probs * values).sum(1).amin(0) - found).mean() > 0.04
    assert (values.std(1) > 0.1).all()  # one action's value would not pass for the mean


def test_bcq_takes_the_best_of_an_autoregressive_policys_candidates() -> None:
    # So many candidates that all of the 30 actions are among them.
    algo, x, values = autoregressive(AutoregressiveBCQ, n_action_samples=2_000)
    with torch.no_grad():
        found = algo.impl.compute_next_values(x, x)
    torch.testing.assert_close(found, values.amin(0).amax(0))
    with torch.no_grad():
        online = torch.stack(
            [
                algo.impl.q_values(algo.impl.modules.q_funcs, x, a.expand(3, -1)).amin(0)
                for a in all_actions()
            ]
        )
    best = all_actions()[online.argmax(0)]
    assert algo.predict(x.numpy()).tolist() == best.tolist()
    assert algo.sample_action(x.numpy()).tolist() == best.tolist()


def test_bcq_with_few_autoregressive_candidates_predicts_alike_and_samples_anew() -> None:
    algo, _, _ = autoregressive(AutoregressiveBCQ, n_action_samples=2)
    x = torch.randn(50, OBSERVATION_SIZE).numpy()
    assert algo.predict(x).tolist() == algo.predict(x).tolist()
    assert algo.sample_action(x).tolist() != algo.sample_action(x).tolist()
