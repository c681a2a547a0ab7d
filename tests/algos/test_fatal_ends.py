"""How likely a place is a fatal end, and critics that know it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy import SPINIDQL
from spin_d3rlpy.critics.fatal_ends import FatalEnds, are_fatal, bound_of_fatal_ends
from spin_d3rlpy.critics.return_bins import AVERSION, ReturnBins, mean_with_fatal_ends
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.search import places as spin_places
from spin_d3rlpy.search import state_model
from spin_d3rlpy.search.places import NOWHERE, KnownPlaces, Places
from spin_d3rlpy.search.state_model import LEAST_FATAL, StateModel, Transitions
from spin_d3rlpy.training.loop import Run
from tests.algos.test_afterstates import QUIET, SIZE, D, walks

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics")


def test_an_end_is_fatal_if_it_costs_more_than_any_other_step() -> None:
    rewards = torch.tensor([-5.0, 0.0, -5.4, -5.6, 9.0])
    terminals = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
    bound = bound_of_fatal_ends(rewards, terminals)
    assert bound.tolist() == pytest.approx([-5.5])  # a tenth of the range below the least one
    assert are_fatal(rewards, terminals, bound).tolist() == [False, False, False, True, False]
    ends = torch.ones(5)  # single decisions are no ends of anything
    assert not are_fatal(rewards, ends, bound_of_fatal_ends(rewards, ends)).any()


def test_log_odds_tell_what_fatal_places_have_in_common() -> None:
    """Of six numbers none may be at its edge: 64 of 4,096 places, of which 22 were seen."""
    grid = torch.tensor([*itertools.product(range(4), repeat=6)]).float()
    places, inside = Places(6), ((grid > 0) & (grid < 3)).all(1)
    places.fit(grid)
    seen = torch.randperm(len(grid), generator=torch.Generator().manual_seed(0))[:1000]
    assert inside[seen].sum() == 22
    ends = FatalEnds(places.size)
    assert (ends(places(grid)).sigmoid() < 1e-9).all()  # nothing is until it is learned
    ends.fit(places(grid[seen]), inside[seen], torch.ones(1000))
    risk = ends(places(grid)).sigmoid()
    unseen = torch.ones(len(grid), dtype=torch.bool)
    unseen[seen] = False
    assert (risk[inside & unseen] > 0.8).all()
    assert (risk[~inside & unseen] < 0.03).all()


def test_steps_count_by_how_many_they_stand_for() -> None:
    places, is_fatal = torch.zeros(4, 1), torch.tensor([True, False, False, False])
    ends = FatalEnds(1)
    ends.fit(places, is_fatal, torch.tensor([1.0, 33.0, 33.0, 33.0]))
    assert ends(places[:1]).sigmoid().item() == pytest.approx(0.01, rel=1e-3)


def test_fatal_ends_have_a_bin_of_their_own() -> None:
    bins, fatal = ReturnBins(1, 10, has_fatal=True), torch.tensor([False, False, True])
    bins.fit(torch.tensor([[0.0, 1.0, -100.0]]), fatal)
    assert bins.n_logits == 11
    assert bins.edges[0, [0, -1]].tolist() == pytest.approx([-0.1, 1.1])
    assert bins.middles[0, 0] == -100.0
    logits = torch.zeros(3, 11, requires_grad=True)
    optimizer = torch.optim.Adam([logits], 0.1)
    for _ in range(400):
        optimizer.zero_grad()
        bins.cross_entropy(logits, torch.tensor([[0.0, 1.0, -100.0]]), fatal).backward()
        optimizer.step()
    assert bins.means(logits)[0].tolist() == pytest.approx([0.05, 0.95, -100.0], abs=0.5)
    risk = logits.detach().softmax(-1)[:, 0]
    assert (risk < 0.01).tolist() == [True, True, False]


def test_what_a_fatal_end_costs_counts_more_than_it_is_likely() -> None:
    logits = torch.tensor([[50.0, 50.0 + math.log(9.0), 0.0]])  # of a tenth
    returns = torch.tensor([-90.0, 10.0, 0.0])
    value = mean_with_fatal_ends(logits, torch.tensor([-5.0]), torch.tensor([False]), returns)
    assert value.item() == pytest.approx(10.0 - AVERSION * 0.1 * 100.0, abs=0.01)
    survived = mean_with_fatal_ends(logits, torch.tensor([-5.0]), torch.tensor([True]), returns)
    assert survived.item() == pytest.approx(10.0, abs=0.01)


def test_networks_may_know_of_more_risk_than_the_sum_and_not_of_less() -> None:
    logits, returns = torch.tensor([[-20.0, 0.0], [3.0, 0.0]]), torch.tensor([-100.0, 0.0])
    least = torch.full((2,), -math.log(3.0))  # a quarter
    unknown = torch.zeros(2, dtype=torch.bool)
    values = mean_with_fatal_ends(logits, least, unknown, returns) / -AVERSION / 100.0
    assert values.tolist() == pytest.approx([0.25, torch.tensor(3.0).sigmoid().item()])


def algorithm() -> Any:
    d3rlpy.seed(0)
    algo: Any = SPINIDQL(
        recipe="tuned",
        find_own_columns=False,
        short_gammas=[0.0],
        batch_size=64,
        afterstates=True,
        state_model_updates=300,
    )
    algo.config.policy.pretraining.max_updates = 20
    return algo


@pytest.mark.parametrize("ends", [True, False])
def test_critics_begin_with_them(ends: bool) -> None:
    """Before a step of theirs, and before any step where none is fatal, whatever they predict."""
    algo, buffer = algorithm(), walks(3000, ends=ends)
    algo.build_with_dataset(buffer)
    algo.train_first_stages(buffer, Run(show_progress=False))
    model, critic = algo.impl.state_model, algo.impl.modules.q_funcs
    x = torch.tensor([*itertools.product(range(SIZE), repeat=D)]).float()
    stays = torch.zeros(len(x), 2 * D, dtype=torch.int64)
    inside = ((x > 0) & (x < SIZE - 1)).all(1)
    x = algo.network_input(x.numpy())
    log_odds = model.fatal_ends(model.places_after(model.total(x, stays)))
    assert ((log_odds > 0.0) == (inside & ends)).float().mean() > 0.95
    for q in critic.members:
        first = q.logits(q.open(x).total(stays)).unflatten(1, (-1, q.bins.n_logits))[..., 0]
        assert torch.allclose(first, (log_odds + math.log(q.bins.n_bins))[:, None], atol=1e-4)
        lowest = q.scale.restore(q.bins.edges[:, :1])[1]  # by the next reward
        assert (lowest > -5.0).all()  # falls cost 38 to 47, and have a bin of their own


def test_all_fatal_ends_are_learned_from_and_some_other_steps_stand_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_model, "MOST_ROWS", 200)
    buffer = walks(3000)
    model = StateModel(D, VectorEncoderFactory(hidden_units=[8]), [2] * 2 * D)
    model.fit_scale(buffer, lambda x: x)
    model.fit_fatal_ends(buffer, buffer.rewards, lambda x: x)
    places = model.places(buffer.observations_at(buffer.observation_index + 1))
    risk = model.fatal_ends(places).sigmoid()
    assert risk.mean() == pytest.approx(buffer.terminals.mean().item(), rel=0.3)


def test_they_learn_more_of_fatal_ends_in_training() -> None:
    algo, buffer = algorithm(), walks(1500)
    algo.fit(buffer, n_steps=60, n_steps_per_epoch=60, **QUIET)
    for q in algo.impl.modules.q_funcs.members:
        assert q.head.weight[:: q.bins.n_logits].abs().amax() > 1e-3
    bound = float(algo.impl.state_model.fatal_ends.bound)
    assert -50.0 < bound < 0.0  # falls cost 38 to 47, other steps pay


def test_where_fatal_steps_lead_is_learned_if_the_data_tell() -> None:
    """Tables hold the step's own state where nothing follows."""
    buffer = walks(600)
    rows = torch.arange(buffer.transition_count + buffer.size())
    untold = buffer.observations_at(rows).clone()
    last = buffer.observation_index[buffer.terminals == 1.0]
    untold[last + 1] = untold[last]
    falls = torch.ones(1)
    for told, data in ((True, buffer), (False, buffer.with_observations(untold))):
        model = StateModel(D, VectorEncoderFactory(hidden_units=[8]), [2] * 2 * D)
        model.fit_scale(data, lambda x: x)
        assert bool(model.knows_last) is told
        x, actions = torch.zeros(1, D), torch.zeros(1, 2 * D, dtype=torch.int64)
        losses = [
            model.loss(Transitions(x, actions, next_x, torch.zeros(1), falls)).item()
            for next_x in (x, x + 1.0)
        ]
        assert (losses[0] != losses[1]) is told


def test_places_of_a_grid_have_keys_and_what_is_between_them_has_none() -> None:
    grid = torch.tensor([*itertools.product([0.0, 1.0, 5.0], [-1.0, 1.0], range(9))])
    places = Places(3)
    places.fit(grid)
    keys = places.keys(places(grid))
    assert len(keys.unique()) == len(grid)
    near, between = grid.clone(), grid.clone()
    near[:, 0] += 0.2
    between[:, 2] += 0.4
    assert (places.keys(places(near)) == keys).all()
    told = places.keys(places(between))
    assert (told[grid[:, 2] < 8.0] == NOWHERE).all()
    assert (told[grid[:, 2] == 8.0] == keys[grid[:, 2] == 8.0]).all()  # nothing is beyond the last


def test_where_a_column_has_many_values_no_two_places_are_the_same() -> None:
    x = torch.cat([torch.arange(50.0)[:, None], torch.zeros(50, 1)], dim=1)
    places = Places(2)
    places.fit(x)
    assert (places.keys(places(x)) == NOWHERE).all()


def test_known_places_are_told_from_others_in_files_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, keys = KnownPlaces(), 3 * torch.arange(7, 1007)
    asked = torch.cat([torch.arange(-5, 4000), torch.tensor([NOWHERE, 2**61, 2**62 - 1])])
    assert not known(asked).any()
    known.remember(torch.cat([keys, keys, torch.tensor([NOWHERE])]))
    expected = torch.isin(asked, keys)
    assert torch.equal(known(asked), expected)
    monkeypatch.setattr(spin_places, "is_exporting", lambda: True)
    assert torch.equal(known(asked), expected)


def survived_of(buffer: DeviceReplayBuffer) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns which steps of a log led to places that are known to be survived, and their ends."""
    model = StateModel(D, VectorEncoderFactory(hidden_units=[8]), [2] * 2 * D)
    model.fit_scale(buffer, lambda x: x)
    model.fit_fatal_ends(buffer, buffer.rewards, lambda x: x)
    places = model.places(buffer.observations_at(buffer.observation_index + 1))
    return model.survived(model.places.keys(places)), buffer.terminals.bool()


def test_places_from_which_the_log_went_on_are_known() -> None:
    survived, has_ended = survived_of(walks(3000))
    assert survived[~has_ended].all()
    assert not survived[has_ended].any()


def test_of_few_fatal_ends_none_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not survived_of(walks(3000, ends=False))[0].any()
    buffer = walks(100)
    assert 2 < buffer.terminals.sum() < LEAST_FATAL
    assert not survived_of(buffer)[0].any()
    monkeypatch.setattr(state_model, "LEAST_FATAL", 2)
    assert survived_of(buffer)[0].any()


def test_where_chance_decides_what_is_fatal_no_place_is_known() -> None:
    buffer = walks(3000)
    rewards = buffer.rewards.clone()
    rewards[buffer.terminals.nonzero()[::2, 0]] = 0.0  # every other end is none of these
    assert not survived_of(buffer.with_rewards(rewards))[0].any()


def test_an_action_that_leads_to_a_known_place_costs_no_risk() -> None:
    algo = algorithm()
    algo.build_with_dataset(walks(3000))
    algo.train_first_stages(walks(3000), Run(show_progress=False))
    model = algo.impl.state_model
    x, falls = algo.network_input(np.array([[0.0, 2.0, 2.0]])), torch.tensor([[1, 0, 0, 0, 0, 0]])
    with torch.no_grad():
        before = algo.impl.values_by_gamma(x, falls)
        model.survived.remember(model.places.keys(model.places_after(model.total(x, falls))))
        after = algo.impl.values_by_gamma(x, falls)
    assert (after > before + 20.0).all()  # falls cost 38 to 47
