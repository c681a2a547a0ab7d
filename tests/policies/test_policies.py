"""Distributions of all policies, by enumeration of a small action space."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy import fast
from spin_d3rlpy.asm import MLPConfig, TransformerConfig
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies import (
    SAINT,
    SPIN,
    Autoregressive,
    AutoregressiveConfig,
    AutoregressivePolicy,
    Factored,
    IndependentPolicy,
    Policy,
    PolicyFactory,
    SlotPolicy,
    autoregressive,
)
from spin_d3rlpy.policies.features import QueryFeatures

NVEC = [3, 4, 2]
TINY = TransformerConfig(width=8, n_blocks=1, n_heads=2, head_hidden=8)
SMALL_LSTM = AutoregressiveConfig(state_width=7, action_width=5, lstm_width=13)
FACTORIES = [
    Factored(VectorEncoderFactory(hidden_units=[16])),
    SAINT(transformer=TINY),
    SPIN(transformer=TINY),
    SPIN(architecture="mlp", mlp=MLPConfig(width=9)),
    Autoregressive(SMALL_LSTM),
]


@pytest.fixture(params=FACTORIES, ids=lambda f: f.get_type())
def policy(request: pytest.FixtureRequest) -> Policy:
    factory: PolicyFactory = request.param
    torch.manual_seed(0)
    policy = factory.create_policy(5, NVEC).eval()
    with torch.no_grad():
        for p in policy.parameters():  # far from uniform
            p.mul_(2.0)
    return policy


def all_actions() -> torch.Tensor:
    return torch.tensor(list(itertools.product(*(range(m) for m in NVEC))))


def joint(policy: Policy, observation: torch.Tensor) -> torch.Tensor:
    actions = all_actions()
    return policy.log_prob(observation.expand(len(actions), -1), actions).exp()


def test_probabilities_of_all_actions_sum_to_one(policy: Policy) -> None:
    for observation in torch.randn(3, 5):
        assert joint(policy, observation).sum().item() == pytest.approx(1.0, abs=1e-5)


def test_greedy_action_is_the_mode(policy: Policy) -> None:
    observations = torch.randn(7, 5)
    greedy = policy.greedy(observations)
    for observation, action in zip(observations, greedy, strict=True):
        p = joint(policy, observation).unflatten(0, NVEC)
        if isinstance(policy, IndependentPolicy):
            assert torch.equal(all_actions()[p.argmax()], action)
        else:  # slot by slot, given the choices before
            first = p.sum((1, 2)).argmax()
            second = p[first].sum(1).argmax()
            assert action.tolist() == [first, second, p[first, second].argmax()]


def test_sampling_frequencies_match_the_probabilities(policy: Policy) -> None:
    torch.manual_seed(1)
    n = 40_000
    observation = torch.randn(5)
    samples = policy.sample(observation.expand(n, -1))
    index = (samples * torch.tensor([8, 2, 1])).sum(1)
    frequencies = torch.bincount(index, minlength=24) / n
    p = joint(policy, observation)
    assert p.max() < 0.95
    assert ((frequencies - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1e-4).all()


def test_autoregressive_slots_depend_on_the_choices_before_and_no_others() -> None:
    torch.manual_seed(0)
    policy = AutoregressivePolicy(5, NVEC, SMALL_LSTM)
    observations, actions = torch.randn(1, 5), torch.tensor([[1, 2, 0]])
    changed = torch.tensor([[1, 3, 1]])
    first, second, third = policy(observations, actions).split(NVEC, dim=1)
    first2, second2, third2 = policy(observations, changed).split(NVEC, dim=1)
    assert torch.equal(first, first2)
    assert torch.equal(second, second2)
    assert not torch.equal(third, third2)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_autoregressive_actions_do_not_depend_on_how_the_lstm_is_computed(
    monkeypatch: pytest.MonkeyPatch, n_layers: int
) -> None:
    torch.manual_seed(0)
    sizes = dataclasses.replace(SMALL_LSTM, n_layers=n_layers)
    policy = AutoregressivePolicy(5, NVEC, sizes)
    observations = 3.0 * torch.randn(100, 5)
    noise = gumbel_noise(torch.empty(100, sum(NVEC)))
    by_cells = policy.decode(observations, noise)
    calls: list[int] = []
    policy.lstm.register_forward_hook(lambda *_: calls.append(1))
    monkeypatch.setattr(autoregressive, "MANY_ROWS", 101)
    assert torch.equal(policy.decode(observations, noise), by_cells)
    assert not calls
    monkeypatch.setattr(autoregressive, "MANY_ROWS", 100)
    assert torch.equal(policy.decode(observations, noise), by_cells)
    assert len(calls) == len(NVEC)


def test_autoregressive_greedy_decoding_is_not_the_joint_mode() -> None:
    """Slot by slot it takes the likelier first choice, whose continuations share its mass."""
    torch.manual_seed(0)
    policy = AutoregressivePolicy(1, [2, 3], AutoregressiveConfig(4, 3, 8, 1))
    table = torch.tensor([[0.2, 0.2, 0.2], [0.4, 0.0, 0.0]]) + 1e-6
    optim = torch.optim.Adam(policy.parameters(), lr=0.05)
    actions = torch.tensor(list(itertools.product(range(2), range(3))))
    for _ in range(300):
        loss = -(table.flatten() * policy.log_prob(torch.ones(6, 1), actions)).sum()
        optim.zero_grad()
        loss.backward()
        optim.step()
    p = policy.log_prob(torch.ones(6, 1), actions).exp()
    assert actions[p.argmax()].tolist() == [1, 0]
    assert policy.greedy(torch.ones(1, 1))[0, 0] == 0


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda f: f.get_type())
@pytest.mark.parametrize("nvec", [[1000, 2], [3] * 64, [7], [1, 4]])
def test_large_and_odd_action_spaces(factory: PolicyFactory, nvec: list[int]) -> None:
    policy = factory.create_policy(5, nvec).eval()
    observations = torch.randn(3, 5)
    for actions in (policy.greedy(observations), policy.sample(observations)):
        assert actions.shape == (3, len(nvec))
        assert ((actions >= 0) & (actions < torch.tensor(nvec))).all()
        assert policy.log_prob(observations, actions).isfinite().all()


@pytest.mark.parametrize("frozen", [True, False])
def test_slot_policy_and_every_gradient_equal_the_plain_formulation(frozen: bool) -> None:
    torch.manual_seed(2)
    sizes = TransformerConfig(width=12, n_blocks=2, n_heads=3, n_state_tokens=2, head_hidden=7)
    policy = SlotPolicy(NVEC, QueryFeatures(11, len(NVEC), sizes, frozen), sizes).eval()
    for p in policy.parameters():
        torch.nn.init.normal_(p, std=0.3)
    observations = torch.randn(9, 11)
    actions = torch.stack([torch.randint(m, (9,)) for m in NVEC], 1)
    quick = policy.log_prob(observations, actions)
    with fast.plain():
        plain = policy.log_prob(observations, actions)
    torch.testing.assert_close(quick, plain, rtol=1e-4, atol=1e-5)
    trained = [p for p in policy.parameters() if p.requires_grad]
    for a, b in zip(
        torch.autograd.grad(quick.sum(), trained),
        torch.autograd.grad(plain.sum(), trained),
        strict=True,
    ):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
