"""Critics of whole actions, the search by them, and how far they are trusted."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy import SPINIDQL, FactoredIDQL, load_policy, save_policy
from spin_d3rlpy.algos.joint_critics import JointCritic
from spin_d3rlpy.algos.search import ascend
from spin_d3rlpy.algos.trust import Trust, TrustSwitch, measure_trust
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies.base import IndependentConditionals
from spin_envs import ActionLayout
from tests.algos.problems import tiny_fields

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}

N, K = 4, 3
COURIERS = ActionLayout(
    shared_choices=True,
    slot_columns=((0,), (1,), (2,), (3,)),
    choice_columns=((4,), (5,), (-1,)),
    choice_features=((0.0,), (0.0,), (1.0,)),
    compared=((0, 0),),
)
LAYOUTS = {
    "separate": None,
    "shared": ActionLayout(shared_choices=True),
    "entities": COURIERS,
}
SIZE = 7  # of observations; the last column is context


def make_critic(layout: ActionLayout | None, nvec: tuple[int, ...] = (K,) * N) -> JointCritic:
    torch.manual_seed(0)
    factory = VectorEncoderFactory(hidden_units=[8], use_layer_norm=True)
    return JointCritic((SIZE,), factory, nvec, 2, layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_changed_slot_changes_sums_as_a_new_sum_would(layout: ActionLayout | None) -> None:
    critic, x = make_critic(layout), torch.randn(5, SIZE)
    actions = torch.randint(K, (5, N))
    rows, choices = torch.arange(5).repeat_interleave(K), torch.arange(K).repeat(5)
    for q, slot in itertools.product(critic.members, range(N)):
        state = q.open(x)
        changed = actions[rows].clone()
        changed[:, slot] = choices
        expected = torch.stack(
            [
                q.open(x[r : r + 1]).total(a[None])[0]
                for r, a in zip(rows.tolist(), changed, strict=True)
            ]
        )
        found = state.swaps(state.total(actions), actions, slot, rows, choices)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_values_of_several_actions_are_those_of_each(layout: ActionLayout | None) -> None:
    critic, x, slots = make_critic(layout), torch.randn(5, SIZE), SlotLayout([K] * N)
    actions = torch.randint(K, (6, 5, N))
    together = critic.q_values(slots, x, actions)  # (E, A, B)
    each = torch.stack([critic.q_values(slots, x, a) for a in actions], dim=1)
    torch.testing.assert_close(together, each, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", [LAYOUTS["shared"], COURIERS], ids=["shared", "entities"])
def test_slots_that_share_their_choices_may_be_permuted(layout: ActionLayout) -> None:
    critic, slots = make_critic(layout), SlotLayout([K] * N)
    x, actions = torch.randn(5, SIZE), torch.randint(K, (5, N))
    order = torch.tensor([2, 0, 3, 1])
    moved = x.clone()
    if layout.slot_columns:
        moved[:, :N] = x[:, order]
    same = critic.q_values(slots, moved, actions[:, order])
    torch.testing.assert_close(same, critic.q_values(slots, x, actions), atol=1e-5, rtol=1e-4)


def all_actions(nvec: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(list(itertools.product(*map(range, nvec))))


def lowest(critic: JointCritic, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    slots = SlotLayout([K] * N)
    return critic.q_values(slots, x, actions).amin(0)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_search_ends_where_no_supported_change_of_one_slot_is_better(
    layout: ActionLayout | None,
) -> None:
    critic, x = make_critic(layout), torch.randn(6, SIZE)
    logits = 2.0 * torch.randn(6, N * K)
    slots = SlotLayout([K] * N)
    start = slots.argmax(logits)
    conditionals = IndependentConditionals(slots, logits)
    found = ascend(critic, conditionals, x, start, support=0.1, sweeps=20)
    assert (lowest(critic, x, found) >= lowest(critic, x, start)).all()
    split = slots.split(logits)
    supported = split >= split.amax(-1, keepdim=True) + np.log(0.1)
    assert supported.gather(-1, found[..., None]).all()
    changed = 0
    for slot, choice in itertools.product(range(N), range(K)):
        other = found.clone()
        other[:, slot] = choice
        better = lowest(critic, x, other) > lowest(critic, x, found) + 1e-5
        assert not (better & supported[:, slot, choice]).any()
        changed += int(better.any())
    assert changed  # support did keep the search from something


def test_one_sweep_finds_the_best_action_of_a_sum_over_slots() -> None:
    critic, x, slots = make_critic(None), torch.randn(3, SIZE), SlotLayout([K] * N)
    del critic[1]
    q: Any = critic[0]
    q.values = lambda sums: sums[..., 0]
    everything = all_actions((K,) * N)
    values = critic.q_values(slots, x, everything[:, None].expand(-1, 3, -1))[0]
    conditionals = IndependentConditionals(slots, torch.zeros(3, N * K))
    start = torch.zeros(3, N, dtype=torch.int64)
    found = ascend(critic, conditionals, x, start, support=0.5, sweeps=1)
    assert torch.equal(found, everything[values.argmax(0)])


def test_the_search_keeps_conditions_and_deadlines() -> None:
    critic, x, slots = make_critic(LAYOUTS["shared"]), torch.randn(8, SIZE), SlotLayout([K] * N)
    conditionals = IndependentConditionals(slots, torch.zeros(8, N * K))
    start = torch.tensor([[0, 1, 2, 2]]).repeat(8, 1)

    def search(**conditions: Any) -> torch.Tensor:
        return ascend(critic, conditionals, x, start, 0.5, 3, **conditions)

    assert not torch.equal(search(), start)
    given = torch.tensor([[-1, 1, -1, -1]]).repeat(8, 1)
    assert (search(given=given)[:, 1] == 1).all()
    allowed = torch.ones(8, N, K, dtype=torch.bool)
    allowed[:, 0, 1:] = False
    assert (search(allowed=allowed)[:, 0] == 0).all()
    kept = search(rule=all_different(K, except_for=[2]))
    for choice in (0, 1):
        assert ((kept == choice).sum(1) <= 1).all()
    assert torch.equal(search(deadline=time.monotonic() - 1.0), start)


def logged(rewards: Callable[[np.ndarray, np.ndarray], np.ndarray], n: int = 40) -> Any:
    """Episodes of 20 steps whose states and actions are random, as a buffer."""
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(n):
        states = rng.normal(size=(21, 3)).astype(np.float32)
        actions = rng.integers(3, size=(20, 2))
        episodes.append(
            EpisodeArrays(f"episode {i}", states, actions, rewards(states, actions), False)
        )
    return DeviceReplayBuffer(stack_episodes(iter(episodes), [20] * n, [3, 3]))


@pytest.mark.parametrize(("scale", "slope"), [(1.0, 1.0), (2.0, 0.5), (-1.0, -1.0)])
def test_the_slope_says_which_share_of_predicted_advantages_is_real(
    scale: float, slope: float
) -> None:
    buffer = logged(lambda s, a: a[:, 0] - 1.0 + 0.1 * s[:-1, 0])

    def values(x: torch.Tensor, actions: torch.Tensor | None) -> torch.Tensor:
        return 0.1 * x[:, 0] + (0.0 if actions is None else scale * (actions[:, 0] - 1.0))

    trust = measure_trust(buffer, values, gamma=0.0)
    assert trust.slopes[0] == pytest.approx(slope, abs=1e-3)
    assert trust.rows == 800
    noisy = logged(lambda s, a: a[:, 0] - 1.0 + np.random.default_rng(1).normal(size=20))
    found = measure_trust(noisy, values, gamma=0.0)
    assert abs(found.slopes[0] - slope) < 4 * found.standard_errors[0]
    assert 0.001 < found.standard_errors[0] < 0.2


def test_a_policy_better_than_the_data_does_not_make_critics_wrong() -> None:
    """Its mean value is above what follows the data's actions, everywhere alike."""
    buffer = logged(lambda s, a: a[:, 0] - 1.0)

    def values(x: torch.Tensor, actions: torch.Tensor | None) -> torch.Tensor:
        if actions is None:
            return torch.full((len(x),), 3.0)
        return actions[:, 0] - 1.0

    trust = measure_trust(buffer, values, gamma=0.5)
    assert trust.slopes[0] == pytest.approx(1.0, abs=1e-3)


def test_the_advantages_of_noise_are_not_trusted() -> None:
    buffer = logged(lambda s, a: np.random.default_rng(2).normal(size=20))
    noise = torch.Generator().manual_seed(0)

    def values(x: torch.Tensor, actions: torch.Tensor | None) -> torch.Tensor:
        return torch.zeros(len(x)) if actions is None else torch.randn(len(x), generator=noise)

    trust = measure_trust(buffer, values, gamma=0.9)
    assert abs(trust.slopes[0]) < 0.2
    assert trust.acts_by == "imitation"
    assert "imitation" in str(trust)


def test_rewards_of_longer_residuals_are_discounted_and_end_with_the_episode() -> None:
    """With the right values, residuals are 0 whatever the horizon, also at terminal states."""
    rewards = np.arange(1.0, 6.0, dtype=np.float32)
    states = np.arange(6, dtype=np.float32)[:, None]
    actions = np.zeros((5, 1), np.int64)
    episode = EpisodeArrays("e", states, actions, rewards, True)
    buffer = DeviceReplayBuffer(stack_episodes(iter([episode]), [5], [2]))
    to_go = [sum(0.5**j * r for j, r in enumerate(rewards[t:])) for t in range(5)] + [99.0]

    def values(x: torch.Tensor, actions: torch.Tensor | None) -> torch.Tensor:
        v = torch.tensor(to_go)[x[:, 0].long()]
        return v if actions is None else v + 1.0

    trust = measure_trust(buffer, values, gamma=0.5)
    assert trust.slopes == pytest.approx((0.0, 0.0), abs=1e-5)


@pytest.mark.parametrize(
    ("slopes", "errors", "acts_by"),
    [
        ((1.0, 1.0), (0.1, 0.1), "search"),
        ((0.9, 0.9), (0.1, 0.6), "search"),  # 5-step residuals vary too much to tell
        ((0.9, 0.1), (0.1, 0.2), "imitation"),
        ((0.4, 0.9), (0.05, 0.1), "imitation"),
        ((0.8, 0.9), (0.4, 0.1), "imitation"),
    ],
)
def test_what_is_trusted(slopes: Any, errors: Any, acts_by: str) -> None:
    switch = TrustSwitch()
    assert switch.acts_by == "search"  # not tested
    switch.trust = Trust(slopes, errors, 100, 20)
    assert switch.trust == Trust(slopes, errors, 100, 20)
    assert switch.acts_by == acts_by


def test_few_episodes_do_not_make_trust() -> None:
    """Of one block, a slope has no error: nothing may be concluded from it."""
    buffer = logged(lambda s, a: a[:, 0] - 1.0, n=4)
    algo = SPINIDQL(**search_fields(SPINIDQL))
    algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert algo.trust is not None
    assert (algo.trust.rows, algo.trust.blocks, algo.trust.acts_by) == (20, 1, "imitation")
    assert "too few" in str(algo.trust)
    algo = SPINIDQL(**search_fields(SPINIDQL))
    algo.fit(buffer.select([0]), n_steps=2, n_steps_per_epoch=2, **QUIET)
    assert algo.trust == Trust((0.0, 0.0), (0.0, 0.0), 0, 0)
    assert algo.trust.acts_by == "imitation"


def search_fields(algo_class: Any) -> dict[str, Any]:
    fields = tiny_fields(algo_class)
    return fields | {"joint_critic": True, "search_sweeps": 2, "held_out_share": 0.25}


def test_a_run_holds_out_episodes_measures_trust_and_keeps_it_with_the_policy(
    tmp_path: Any,
) -> None:
    buffer = logged(lambda s, a: (a[:, 0] == a[:, 1]).astype(np.float32))
    algo = SPINIDQL(**search_fields(SPINIDQL), gamma=0.0)
    algo.fit(buffer, n_steps=30, n_steps_per_epoch=30, **QUIET)
    trust = algo.trust
    assert trust is not None
    assert trust.rows == 200  # a quarter of 40 episodes of 20 steps
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert loaded.trust == trust
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    np.testing.assert_array_equal(loaded.predict(x), algo.predict(x))


def test_untrusted_critics_do_not_choose() -> None:
    buffer = logged(lambda s, a: (a[:, 0] == a[:, 1]).astype(np.float32))
    algo = SPINIDQL(**search_fields(SPINIDQL), gamma=0.0)
    algo.fit(buffer, n_steps=5, n_steps_per_epoch=5, **QUIET)
    impl: Any = algo.impl
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    switch = impl.modules.trust
    switch.trust = Trust((0.0, 0.0), (0.0, 0.0), 100, 20)
    own = algo.predict(x)
    noise = impl._candidate_noise[:1]
    drawn = impl.acting_policy.sample_several(algo.network_input(x), 1, noise)[0]
    np.testing.assert_array_equal(own, drawn.numpy())
    switch.trust = Trust((1.0, 1.0), (0.0, 0.0), 100, 20)
    searched = algo.predict(x)
    assert (searched != own).any()

    def least(actions: np.ndarray) -> torch.Tensor:
        chosen = torch.from_numpy(actions)
        values: torch.Tensor = impl.q_values(impl.modules.q_funcs, algo.network_input(x), chosen)
        return values.amin(0)

    assert (least(searched) >= least(own)).all()


def test_a_search_learns_what_goes_together_from_random_data() -> None:
    """Random actions, paid where both slots agree: imitation gets a third, the search all."""
    buffer = logged(lambda s, a: (a[:, 0] == a[:, 1]).astype(np.float32), n=100)
    fields = search_fields(FactoredIDQL) | {"n_action_samples": 4}
    algo = FactoredIDQL(**fields, gamma=0.0, critic_learning_rate=3e-3)
    algo.fit(buffer, n_steps=600, n_steps_per_epoch=600, **QUIET)
    assert algo.trust is not None
    assert algo.trust.acts_by == "search"
    actions = algo.predict(np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32))
    assert (actions[:, 0] == actions[:, 1]).mean() > 0.95


@pytest.mark.parametrize(
    ("field", "value"),
    [("support", 0.0), ("support", 1.5), ("search_sweeps", -1), ("held_out_share", 1.0)],
)
def test_settings_of_the_search_are_checked(field: str, value: float) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=f"Expected {field}"):
        SPINIDQL(joint_critic=True, **fields)
    with pytest.raises(ValueError, match="joint_critic True with search_sweeps"):
        SPINIDQL(search_sweeps=1)


def test_milliseconds_are_checked_and_kept() -> None:
    buffer = logged(lambda s, a: a[:, 0].astype(np.float32))
    algo = SPINIDQL(**search_fields(SPINIDQL))
    algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, **QUIET)
    x = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match="milliseconds above 0"):
        algo.predict_with(x, milliseconds=0)
    assert algo.predict_with(x, milliseconds=0.001).shape == (4, 2)


@pytest.mark.parametrize("layout", ["separate", "shared"])
@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_exported_files_search_too(extension: str, layout: str, tmp_path: Any) -> None:
    buffer = logged(lambda s, a: (a[:, 0] == a[:, 1]).astype(np.float32))
    algo = SPINIDQL(**search_fields(SPINIDQL), gamma=0.0, layout=LAYOUTS[layout])
    algo.fit(buffer, n_steps=20, n_steps_per_epoch=20, **QUIET)
    impl: Any = algo.impl
    impl.modules.trust.trust = Trust((1.0, 1.0), (0.0, 0.0), 100, 20)
    path = str(tmp_path / f"policy.{extension}")
    algo.save_policy(path)
    x = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    if extension == "pt":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found = torch.jit.load(path)(torch.from_numpy(x)).numpy()
    else:
        runtime = pytest.importorskip("onnxruntime")
        (found,) = runtime.InferenceSession(path).run(None, {"observations": x})
    np.testing.assert_array_equal(found, algo.predict(x))
