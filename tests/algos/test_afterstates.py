"""Critics of where an action leads, and when they are used."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path
from typing import Any
from unittest import mock

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from numpy.typing import NDArray

from spin_d3rlpy import SPINIDQL, FactoredIDQL, load_policy, save_policy
from spin_d3rlpy.algos.idql import algorithm as idql
from spin_d3rlpy.critics.joint import JointCritic, Moves
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.search import state_model_checks
from spin_d3rlpy.search.afterstates import Afterstates
from spin_d3rlpy.search.places import Places
from spin_d3rlpy.search.state_model import StateModel, learn
from spin_d3rlpy.search.state_model_checks import tells_less
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.loop import Run
from tests.algos.test_imitation_alone import Clock
from tests.exported_files import exported_actions

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics")
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
D, SIZE = 3, 5  # dimensions, each with a bit up and a bit down, and cells of each
EVERYWHERE = np.array([*itertools.product(range(SIZE), repeat=D)], np.float32)[::7]


def walks(
    n: int = 1500,
    ends: bool = True,
    chance: float = 0.0,
    paid_by: str = "place",
    cost: float = 50.0,
) -> DeviceReplayBuffer:
    """Random walks in a grid in whose middle, apart from its edges, episodes end badly.

    Args:
        n: steps.
        ends: whether they do; if not, episodes have 20 steps.
        chance: share of steps that lead anywhere.
        paid_by: `"place"`, `"action"` or `"progress"`, what rewards depend on.
        cost: of a bad end.
    """
    rng, episodes = np.random.default_rng(0), list[EpisodeArrays]()
    x, rows, chosen, paid = np.zeros(D), [np.zeros(D)], [], []
    while sum(len(e.rewards) for e in episodes) < n:
        bits = rng.integers(0, 2, 2 * D)
        before, x = x.sum(), np.clip(x + bits[::2] - bits[1::2], 0, SIZE - 1)
        if rng.random() < chance:
            x = rng.integers(0, SIZE, D).astype(float)
        falls = ends and bool(((x > 0) & (x < SIZE - 1)).all())
        by_place = x.sum() - before * (paid_by == "progress") - cost * falls
        reward = bits.sum() if paid_by == "action" else by_place
        rows.append(x)
        chosen.append(bits)
        paid.append(reward)
        if falls or len(paid) == 20:
            episodes.append(
                EpisodeArrays(
                    f"episode {len(episodes)}",
                    np.array(rows, np.float32),
                    np.array(chosen),
                    np.array(paid, np.float32),
                    terminated=falls,
                )
            )
            x, rows, chosen, paid = np.zeros(D), [np.zeros(D)], [], []
    lengths = [len(e.rewards) for e in episodes]
    return DeviceReplayBuffer(stack_episodes(episodes, lengths, [2] * 2 * D))


def algorithm(kind: Any = SPINIDQL, **fields: Any) -> Any:
    d3rlpy.seed(0)
    small = VectorEncoderFactory([64, 64], use_layer_norm=True)
    size: dict[str, Any] = {"batch_size": 64, "critic_encoder_factory": small}
    return kind(recipe="tuned", find_own_columns=False, short_gammas=[0.0], **size, **fields)


def test_neither_a_few_fatal_ends_nor_usual_steps_hide_what_the_next_state_tells() -> None:
    of_actions = 0.1 * torch.rand(1000, generator=torch.Generator().manual_seed(0))
    fatal, rare = of_actions.clone(), of_actions.clone()
    fatal[:2] += 100.0  # as of CoNE: two of 1,000 steps are most of the error
    rare[:50] += 1.0
    assert fatal.mean() > 1.2 * of_actions.mean()
    assert not tells_less(fatal, of_actions)
    assert tells_less(rare, of_actions)
    assert tells_less(1.3 * of_actions, of_actions)
    usual = 1.5 * of_actions  # though by the mean nothing is sure
    of_both = torch.cat([of_actions, torch.tensor([90.0, 0.0])])
    assert tells_less(torch.cat([usual, torch.tensor([0.0, 90.0])]), of_both)
    assert not tells_less(3e-4 * torch.ones(1000), 1e-4 * torch.ones(1000))  # both tell all


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ({}, True),
        ({"ends": False}, False),
        ({"chance": 0.3}, False),
        ({"paid_by": "action"}, False),
        ({"paid_by": "progress"}, False),
        ({"cost": 500.0}, True),  # nearly all of the variance of rewards
    ],
)
def test_data_decide_whether_critics_value_where_an_action_leads(
    log: dict[str, Any], expected: bool
) -> None:
    algo = algorithm()
    before = torch.random.get_rng_state()
    algo.build_with_dataset(walks(**log))
    assert algo.config.afterstates is expected
    assert algo.config.values_afterstates is expected
    rare, stricter = (way.action_flexibility for way in algo.config.searches[:2])
    assert (rare, stricter) == (0.005 if expected else 0.02, 0.1)
    dropout = [q.dropout.p for q in algo.impl.modules.q_funcs.members]
    assert dropout == [0.5 if expected else 0.0, 0.0]
    other = algorithm(afterstates=False)
    torch.random.set_rng_state(before)
    other.build_with_dataset(walks(**log))
    assert other.config.afterstates is False
    if not expected:  # the same networks as if nothing had been asked
        for one, two in zip(networks(algo), networks(other), strict=True):
            assert torch.equal(one, two)


def networks(algo: Any) -> list[torch.Tensor]:
    parts = algo.impl.modules.get_torch_modules().values()
    return [p for part in parts for p in part.parameters()]


def test_without_a_model_of_states_there_are_none() -> None:
    for fields in ({"state_model_updates": 0}, {"rules": [may_go]}, {"expectile": 0.8}):
        algo = algorithm(afterstates=True, **fields)
        algo.build_with_dataset(walks(300))
        assert not algo.config.values_afterstates


def may_go(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Every choice may be made, as far as the state tells."""
    return torch.ones(len(partial), 2 * D, 2, dtype=torch.bool, device=state.device)


def test_moves_change_values_as_whole_actions_do() -> None:
    torch.manual_seed(0)
    factory = VectorEncoderFactory(hidden_units=[16], use_layer_norm=True)
    model = StateModel(D, factory, [2] * 2 * D)
    model.fit_scale(walks(300), lambda x: x)
    encoder = functools.partial(Afterstates, model)
    model.fatal_ends.weight.normal_()
    model.fatal_ends.bias.fill_(-1.0)
    critic = JointCritic((D,), factory, [2] * 2 * D, n_bins=7, create_encoder=encoder).eval()
    x = torch.randint(0, SIZE, (4, D)).float()
    actions = torch.randint(0, 2, (4, 2 * D))
    slots = torch.arange(2 * D).repeat(4)
    rows = torch.arange(4).repeat_interleave(2 * D)
    choices = 1 - actions[rows, slots]
    moves = Moves(rows, slots[:, None].expand(-1, 2), choices[:, None].expand(-1, 2))
    for q in critic.members:
        opened = q.open(x)
        after = opened.total(actions)[rows] + opened.changes(actions, moves)
        whole = q(x[rows], moves.of_each(actions))
        assert torch.allclose(q.values(after), whole, atol=1e-4)
        some = opened.of(torch.tensor([2]))
        assert torch.allclose(q.values(some.total(actions[2:3])), q(x, actions)[2:3], atol=1e-4)


def test_a_model_keeps_what_it_told_last_for_that_alone() -> None:
    model = StateModel(D, VectorEncoderFactory(hidden_units=[8]), [2] * 2 * D)
    x, actions = torch.zeros(2, D), torch.zeros(2, 2 * D, dtype=torch.int64)
    total = model.total(x, actions)
    assert model.total(x, actions) is total
    assert model.total(x, actions + 1) is not total
    assert not torch.equal(model.total(x + 1.0, actions), total)
    assert model.places_after(total) is model.places_after(total)


def test_places_are_told_apart_by_bounds_between_values() -> None:
    places = Places(2)
    places.fit(torch.tensor([[0.0, 0.0], [1.0, 0.5], [3.0, 0.1]]).repeat(20, 1))
    assert places.bounds[0, :2].tolist() == [0.5, 2.0]
    code = places(torch.tensor([[0.9, 0.2]]))
    assert code.shape == (1, places.size)
    assert code[0, :2].tolist() == pytest.approx([0.9, 0.2])
    assert code[0, 2:5].tolist() == [1.0, 0.0, 0.0]
    between = places(torch.tensor([[0.4, 0.1], [0.6, 0.1], [2.1, 0.1]]))[:, 2:4]
    assert between.flatten().tolist() == pytest.approx([0.3, 0.0, 0.7, 0.0, 1.0, 0.6])
    many = torch.linspace(0.0, 1.0, 101)[:, None].expand(-1, 2)
    places.fit(many)
    assert places.bounds[1].tolist() == pytest.approx([i / 9 for i in range(1, 9)], abs=0.01)


@pytest.mark.parametrize("has_time", [False, True])
@pytest.mark.parametrize("kind", [SPINIDQL, pytest.param(FactoredIDQL, marks=pytest.mark.slow)])
def test_critics_make_some_passes_over_the_data_at_most(
    kind: Any, has_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning rates fall to 0 by the last pass, and other networks are trained until the end."""
    buffer, rates = walks(), list[float]()
    algo = algorithm(kind, state_model_updates=8, afterstates=True, lr_warmup=0.0)
    in_passes = math.ceil(buffer.transition_count * 0.9 / 64)  # a tenth is held out
    update = type(algo).impl_class._update_critics

    def counted(impl: Any, batch: Any) -> Any:
        rates.append(impl.modules.critic_optim.optim.param_groups[0]["lr"])
        return update(impl, batch)

    if kind is SPINIDQL:
        algo.config.policy.pretraining.max_updates = 4
    impl_class = type(algo).impl_class
    # It takes long by policies and critics that know nothing.
    monkeypatch.setattr(impl_class, "compare_in_model", lambda _impl, trust, *_states: trust)
    length: Any = {"seconds": Budget(2.5, Clock())} if has_time else {"n_steps": 3 * in_passes}
    with (
        mock.patch.object(impl_class, "_update_critics", counted),
        mock.patch.object(idql, "MOST_PASSES", 1),
    ):
        rows = algo.fit(buffer, **length, n_steps_per_epoch=in_passes, **QUIET)
    assert len(rates) == pytest.approx(in_passes, abs=3)  # whole episodes are held out
    assert rates[-1] < 0.1 * rates[0]
    assert algo.grad_step > 1.5 * len(rates)
    last = set(rows[-1][1])
    assert "critic_loss" not in last
    assert ("actor_loss" in last) == (kind is FactoredIDQL)
    assert ("asm_loss" in last) == (kind is SPINIDQL and has_time)
    again = len(rates)
    with mock.patch.object(impl_class, "_update_critics", counted):
        algo.fit(buffer, n_steps=3, **QUIET)  # a new run trains them again
    assert len(rates) == again + 3


@pytest.fixture(scope="module")
def trained() -> SPINIDQL:
    algo: SPINIDQL = algorithm(afterstates=True, state_model_updates=300)
    algo.config.policy.pretraining.max_updates = 60
    algo.fit(walks(3000), n_steps=200, n_steps_per_epoch=200, **QUIET)
    algo.config.search = "always"
    return algo


@pytest.mark.parametrize("afterstates", [False, True])
def test_the_structure_model_has_codes_of_values_if_they_do_not(afterstates: bool) -> None:
    """Coordinates have five values each. A search by places asks what the log supports at all."""
    algo = algorithm(afterstates=afterstates, state_model_updates=3)
    algo.config.policy.pretraining.max_updates = 3
    algo.fit(walks(300), n_steps=1, n_steps_per_epoch=1, **QUIET)
    assert algo.policy.asm.value_codes.fitted
    assert algo.policy.asm.value_codes.is_used != afterstates


def test_critics_know_what_is_fatal_by_where_it_leads(trained: SPINIDQL) -> None:
    x = np.array([[0.0, 2.0, 2.0]], np.float32)
    falls = np.array([[1, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 1]])
    stays = np.array([[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1]])
    values = [trained.predict_value(x.repeat(2, 0), a) for a in (falls, stays)]
    assert (values[0] < values[1] - 5.0).all()


def test_its_policy_acts_from_a_file(trained: SPINIDQL, tmp_path: Path) -> None:
    expected: NDArray[Any] = trained.predict(EVERYWHERE)
    trained.save(str(tmp_path / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "algo.d3"))
    assert loaded.config.afterstates is True
    assert (loaded.predict(EVERYWHERE) == expected).all()
    save_policy(trained, tmp_path / "policy.safetensors")
    policy = load_policy(tmp_path / "policy.safetensors")
    assert (policy.predict(EVERYWHERE) == expected).all()


def test_its_critics_are_copied_with_what_they_see(trained: SPINIDQL) -> None:
    other: Any = algorithm(afterstates=True)
    other.build_with_dataset(walks(3000))  # observations have the same scale
    other.copy_q_function_from(trained)
    actions: NDArray[Any] = trained.predict(EVERYWHERE)
    expected: NDArray[Any] = trained.predict_value(EVERYWHERE, actions)
    assert (other.predict_value(EVERYWHERE, actions) == expected).all()


@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_its_search_acts_from_an_exported_file(
    trained: SPINIDQL, extension: str, tmp_path: Path
) -> None:
    expected: NDArray[Any] = trained.predict(EVERYWHERE)
    path = str(tmp_path / f"policy.{extension}")
    trained.save_policy(path)
    assert (exported_actions(path, observations=EVERYWHERE) == expected).all()


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idql, "MOST_PASSES", 0.3)  # 7 of 8 steps
    monkeypatch.setattr(state_model_checks, "PROBE_UPDATES", 300)
    buffer = walks()

    def fitted(afterstates: bool | str = "auto", **kept: Any) -> Any:
        algo = algorithm(state_model_updates=8, afterstates=afterstates)
        algo.config.policy.pretraining.max_updates = 4
        algo.fit(buffer, n_steps=8, n_steps_per_epoch=4, **kept, **QUIET)
        return algo

    kept: dict[str, Any] = {"checkpoint_dir": tmp_path, "checkpoint_interval": 2}
    calls, loss = itertools.count(), JointCritic.loss

    def die(*arguments: Any) -> torch.Tensor:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return loss(*arguments)

    whole = fitted(afterstates=True)  # as the data decide otherwise
    with mock.patch.object(JointCritic, "loss", die), pytest.raises(KeyboardInterrupt):
        fitted(**kept)
    again = fitted(**kept, resume=True)
    assert again.config.afterstates is True
    assert again.trust == whole.trust
    for one, two in zip(networks(again), networks(whole), strict=True):
        assert torch.equal(one, two)


def test_a_model_tells_what_choices_do() -> None:
    torch.manual_seed(0)
    factory = VectorEncoderFactory(hidden_units=[64], use_layer_norm=True)
    model = StateModel(D, factory, [2] * 2 * D)
    learn(model, walks(3000), 800, Run(show_progress=False))
    x = torch.tensor([*itertools.product(range(SIZE), repeat=D)]).float()
    x = x[((x == 0) | (x == SIZE - 1)).any(1)]
    wrong = []
    for bits in itertools.product((0, 1), repeat=2 * D):
        actions = torch.tensor(bits).expand(len(x), -1)
        places = model.places_after(model.total(x, actions))[:, :D]
        after = (x + actions[:, ::2] - actions[:, 1::2]).clamp(0, SIZE - 1)
        wrong.append((places - after).abs() > 0.5)
    assert torch.stack(wrong).float().mean() < 0.02
