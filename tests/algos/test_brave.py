"""BraVE's tree, searches and loss against formulations of one row, with plain lists and dicts."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers import SGDFactory

from spin_d3rlpy import BraVE, BraVEConfig, DeviceReplayBuffer, load_policy, save_policy
from spin_d3rlpy.asm.rule_files import as_named_rule
from spin_d3rlpy.data.buffer.prioritized import PrioritizedReplay
from spin_d3rlpy.errors import InvalidCheckpointError, InvalidDatasetError, NvecMismatchError
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.search.tree import ActionTree, LoggedActions
from spin_d3rlpy.search.tree_search import beam_search, greedy_descent
from tests.algos.problems import NVEC, SignEnv, random_buffer

Action = tuple[int, ...]
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
SMALL = VectorEncoderFactory(hidden_units=[13])


# -- one row at a time -----------------------------------------------------------------------


def last_choice(action: Action) -> int:
    """The last slot that is not 0; -1 if all are."""
    return max((i for i, choice in enumerate(action) if choice), default=-1)


def parent_of(action: Action) -> Action:
    changed = list(action)
    changed[last_choice(action)] = 0
    return tuple(changed)


class PlainTree:
    """Children of every node that is logged or above a logged one, by slot and choice."""

    def __init__(self, logged: list[Action]) -> None:
        self.logged = set(logged)
        self.nodes = set(self.logged)
        for action in logged:
            while any(action):
                action = parent_of(action)
                self.nodes.add(action)
        self.root = (0,) * len(logged[0])
        self.nodes.add(self.root)
        self.children: dict[Action, list[Action]] = {node: [] for node in self.nodes}
        for node in sorted(self.nodes - {self.root}, key=lambda a: (last_choice(a), a)):
            self.children[parent_of(node)].append(node)
        for children in self.children.values():
            children.sort(key=lambda a: (last_choice(a), a[last_choice(a)]))

    def greedy(self, outputs: Any) -> Action:
        node = self.root
        while self.children[node]:
            q, *v = outputs(node)
            v = v[: len(self.children[node])]
            if q >= max(v) and node in self.logged:
                return node
            node = self.children[node][int(np.argmax(v))]
        return node

    def beam(self, outputs: Any, width: int) -> Action:
        kept, queue = {self.root: -np.inf}, deque([self.root])
        while queue:
            node = queue.popleft()
            q, *v = outputs(node)
            kept[node] = q
            competing = [(value, child) for value, child in zip(v, self.children[node])]  # noqa: B905
            if node in self.logged:
                competing.append((q, node))
            for value, child in sorted(competing, reverse=True)[:width]:
                if child == node:
                    continue
                if len(kept) == width:
                    worst = min(kept, key=lambda a: kept[a])
                    if value < kept[worst]:
                        continue
                    del kept[worst]
                    if worst in queue:
                        queue.remove(worst)
                kept[child] = value
                queue.append(child)
        return max(kept, key=lambda a: kept[a])


def random_actions(nvec: list[int], n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(nvec, size=(n, len(nvec))) * (rng.random((n, len(nvec))) < 0.6)


def tree_of(actions: Any, nvec: list[int]) -> ActionTree:
    return ActionTree.of(LoggedActions.of(actions, nvec))


SPACES = [
    ([2] * 7, 40),
    (NVEC, 12),
    ([3, 1, 4, 2, 5], 60),
    ([300, 2, 3], 20),
    ([4], 3),
    ([3, 2], 1),
]
spaces = pytest.mark.parametrize(("nvec", "n"), SPACES, ids=lambda x: str(x).replace(" ", ""))


# -- the tree --------------------------------------------------------------------------------


@spaces
def test_the_tree_has_logged_actions_and_what_is_above_them(nvec: list[int], n: int) -> None:
    actions = random_actions(nvec, n)
    plain, tree = PlainTree([tuple(a) for a in actions.tolist()]), tree_of(actions, nvec)
    nodes = [tuple(a) for a in tree.actions.tolist()]
    assert set(nodes) == plain.nodes
    assert len(nodes) == len(plain.nodes)
    assert nodes[0] == plain.root
    assert tree.depth == max(sum(map(bool, a)) for a in plain.logged)
    for i, node in enumerate(nodes):
        first, count = int(tree.first_children[i]), int(tree.n_children[i])
        assert nodes[first : first + count] == plain.children[node]
        assert bool(tree.is_logged[i]) == (node in plain.logged)
        if i:
            assert nodes[int(tree.parents[i])] == parent_of(node)
            assert plain.children[parent_of(node)][int(tree.ranks[i])] == node


def test_a_tree_of_bits_is_one_of_subsets() -> None:
    """By hand: of 1110 and 0101, with a layout of 4 bits."""
    tree = tree_of([[1, 1, 1, 0], [0, 1, 0, 1]], [2] * 4)
    assert ["".join(map(str, a)) for a in tree.actions.tolist()] == [
        "0000",  # the root; its children 1000 and 0100
        "1000",
        "0100",
        "1100",  # of 1000
        "0101",  # of 0100
        "1110",
    ]
    assert tree.n_children.tolist() == [2, 1, 1, 1, 0, 0]
    assert tree.parents.tolist() == [0, 0, 0, 1, 2, 3]
    assert tree.ranks.tolist() == [0, 0, 1, 0, 0, 0]
    assert tree.is_logged.tolist() == [False] * 4 + [True, True]


@spaces
def test_actions_are_found_in_the_tree_and_others_are_not(nvec: list[int], n: int) -> None:
    tree = tree_of(random_actions(nvec, n), nvec)
    numbers = {tuple(a): i for i, a in enumerate(tree.actions.tolist())}
    everything = torch.tensor(list(itertools.product(*map(range, nvec))))
    found = tree.nodes_of(everything).tolist()
    assert found == [numbers.get(tuple(a), -1) for a in everything.tolist()]
    assert -1 in found or len(numbers) == len(everything)


@spaces
def test_ancestors_lead_to_the_root(nvec: list[int], n: int) -> None:
    tree = tree_of(random_actions(nvec, n), nvec)
    nodes = torch.tensor([-1, *range(len(tree.parents))])
    ancestors, places, is_used = tree.ancestors(nodes)
    assert ancestors.shape == places.shape == is_used.shape == (len(nodes), tree.depth)
    assert not is_used[:2].any()  # of what is no node, and of the root
    for row, node in enumerate(nodes.tolist()[1:], 1):
        way = []
        while node:
            way.append((int(tree.parents[node]), int(tree.ranks[node])))
            node = int(tree.parents[node])
        used = is_used[row]
        assert (
            list(zip(ancestors[row, used].tolist(), places[row, used].tolist(), strict=True)) == way
        )


@spaces
def test_logged_actions_are_packed_and_unpacked(nvec: list[int], n: int) -> None:
    actions = random_actions(nvec, n)
    logged = LoggedActions.of(actions, nvec)
    assert logged.unpack().tolist() == np.unique(actions, axis=0).tolist()
    assert LoggedActions.from_dict(logged.to_dict()) == logged


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"nvec": [2, 3]},
        {"nvec": [2, 3], "packed": 5},
        {"nvec": [2, 3], "packed": "%"},
        {"nvec": [2, 3], "packed": ""},
        {"nvec": [2, 3], "packed": "/w=="},  # a choice beyond the slot's
        {"nvec": [2] * 9, "packed": "/w=="},  # half an action
        {"nvec": [0], "packed": "/w=="},
    ],
)
def test_other_logged_actions_are_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected|nvec"):
        LoggedActions.from_dict(content)


# -- the searches ----------------------------------------------------------------------------


def outputs_by_row(tree: ActionTree, n_rows: int, seed: int) -> torch.Tensor:
    """Random outputs of every node in every row, `(B, M, 1 + C)`."""
    generator = torch.Generator().manual_seed(seed)
    width = 1 + tree.slot_layout.total - tree.slot_layout.n_slots
    return torch.randn(n_rows, len(tree.parents), width, generator=generator)


@pytest.fixture(params=[False, True], ids=["compact", "like a GPU"])
def _waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes are evaluated, as where a step must not wait for the device."""
    if request.param:
        monkeypatch.setattr("spin_d3rlpy.search.tree_search.may_wait", lambda _: False)


@pytest.mark.usefixtures("_waiting")
@spaces
def test_greedy_descents_are_those_of_each_row(nvec: list[int], n: int) -> None:
    actions = random_actions(nvec, n)
    plain, tree = PlainTree([tuple(a) for a in actions.tolist()]), tree_of(actions, nvec)
    outputs = outputs_by_row(tree, 50, seed=1)
    numbers = {tuple(a): i for i, a in enumerate(tree.actions.tolist())}
    found = tree.actions[greedy_descent(tree, lambda rows, nodes: outputs[rows, nodes], 50)]
    expected = [plain.greedy(lambda a, x=x: x[numbers[a]].tolist()) for x in outputs]
    assert [tuple(a) for a in found.tolist()] == expected
    assert n < 3 or len(set(expected)) > 1


@pytest.mark.usefixtures("_waiting")
@pytest.mark.parametrize("width", [1, 2, 5, 30])
@spaces
def test_beam_searches_are_those_of_each_row(nvec: list[int], n: int, width: int) -> None:
    actions = random_actions(nvec, n)
    plain, tree = PlainTree([tuple(a) for a in actions.tolist()]), tree_of(actions, nvec)
    outputs = outputs_by_row(tree, 50, seed=2)
    numbers = {tuple(a): i for i, a in enumerate(tree.actions.tolist())}
    found = tree.actions[beam_search(tree, lambda rows, nodes: outputs[rows, nodes], 50, width)]
    expected = [plain.beam(lambda a, x=x: x[numbers[a]].tolist(), width) for x in outputs]
    assert [tuple(a) for a in found.tolist()] == expected


def test_a_wide_beam_finds_the_largest_value_of_all_nodes() -> None:
    actions = random_actions([2] * 5, 40)
    tree = tree_of(actions, [2] * 5)
    outputs = outputs_by_row(tree, 9, seed=3)
    found = beam_search(tree, lambda rows, nodes: outputs[rows, nodes], 9, 64)
    assert found.tolist() == outputs[..., 0].argmax(1).tolist()


# -- the loss --------------------------------------------------------------------------------


def three_bits(**fields: Any) -> Any:
    """An algorithm whose network's outputs are set by hand, on the tree of 111, 110 and 100."""
    algo: Any = BraVE(
        nvec=[2, 2, 2],
        logged_actions=LoggedActions.of([[1, 1, 1], [1, 1, 0], [1, 0, 0]], [2, 2, 2]),
        encoder_factory=SMALL,
        **fields,
    )
    algo.create_impl((1,), 0)
    return algo


class Table(torch.nn.Module):
    """Outputs `[q, v]` of actions of three bits by hand; v of the only child comes first."""

    def __init__(self, values: dict[Action, list[float]]) -> None:
        super().__init__()
        rows = [values.get(a, [0.0]) for a in itertools.product(range(2), repeat=3)]
        padded = [[*row, *[0.0] * (4 - len(row))] for row in rows]
        self.table = torch.nn.Parameter(torch.tensor(padded))

    def forward(self, _: Any, actions: torch.Tensor) -> torch.Tensor:
        return self.table[(actions.long() * torch.tensor([4, 2, 1])).sum(1)]


@pytest.mark.parametrize(("overwrites", "expected"), [(False, [6, 8, 9]), (True, [6, 8, 8])])
def test_targets_rise_along_a_branch(
    overwrites: bool, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaf's target 6 becomes 8 by a node's own value, then 9 by another branch's.

    As on the paper's figure 3: each ancestor's branch value is pulled to the largest value that is
    known below it. Where the 9 is the stale value of the very branch, overwriting removes it.
    """
    algo = three_bits(overwrite_branch_values=overwrites)
    values: dict[Action, list[float]]
    values = {(1, 1, 1): [5.0], (1, 1, 0): [8.0, 3.0], (1, 0, 0): [7.0, 9.0], (0, 0, 0): [1.0, 2.0]}
    table = Table(values)
    object.__setattr__(algo.impl.modules, "network", table)
    batch: Any = type("Batch", (), {})()
    batch.observations, batch.actions = torch.zeros(1, 1), torch.ones(1, 3, dtype=torch.int64)
    errors, is_used = algo.impl.compute_branch_errors(batch, torch.tensor([6.0]))
    assert is_used.tolist() == [[True, True, True]]
    corrected = [3.0, 9.0, 2.0]  # v of 111 at 110, of 110 at 100, of 100 at the root
    wanted = [k * (v - y) for k, v, y in zip((1, 2, 3), corrected, expected, strict=True)]
    assert errors.tolist() == [wanted]


def plain_losses(algo: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and its part of the logged actions, row by row, in the published code's order."""
    config, network, target = algo.config, algo.impl.modules.network, algo.impl.modules.targ_network
    logged = [tuple(a) for a in config.logged_actions.unpack().tolist()]
    tree = PlainTree(logged)

    def outputs(net: Any, state: Any, action: Action) -> torch.Tensor:
        result: torch.Tensor = net(state[None], torch.tensor([action]))[0]
        return result

    branch_terms, td_terms = [], []
    for b in range(len(batch.actions)):
        s, s2 = batch.observations[b], batch.next_observations[b]
        done, a2 = float(batch.terminals[b]), batch.next_actions[b].tolist()
        best = tree.greedy(lambda n, s2=s2: outputs(network, s2, n).tolist())
        next_value = config.gamma * config.bootstrap_factor * outputs(target, s2, best)[0].item()
        if config.stop_at_terminals:
            next_value *= 1 - done
        changed = sum(x != y for x, y in zip(best, a2, strict=True))
        y: Any = float(batch.rewards[b]) + next_value - (1 - done) * changed
        node = tuple(batch.actions[b].tolist())
        td_terms.append(outputs(network, s, node)[0] - y)
        branch_terms.append(td_terms[-1])
        k = 0
        while any(node) and node in tree.nodes:
            k, child, node = k + 1, node, parent_of(node)
            q, *v = outputs(network, s, node)
            place, children = tree.children[node].index(child), len(tree.children[node])
            error = v[place] - (y.detach() if config.detach_targets and k > 1 else y)
            branch_terms.append(config.depth_weight * k * error)
            if config.overwrite_branch_values:
                v[place] = torch.as_tensor(y)
            y = torch.stack([torch.as_tensor(y), q, *v[:children]]).max()
    branch = torch.stack(branch_terms).square().mean()
    td = torch.stack(td_terms).square().mean()
    return branch + config.td_weight * td, td


def spread(algo: Any) -> None:
    """Makes outputs differ more than rewards do, and the networks from each other."""
    for name, factor in (("network", 3.0), ("targ_network", 2.0)):
        for parameter in getattr(algo.impl.modules, name).parameters():
            parameter.data.mul_(factor)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stop_at_terminals": True},
        {"detach_targets": True},
        {"overwrite_branch_values": True},
        {"depth_weight": 0.5, "td_weight": 3.0, "bootstrap_factor": 1.0, "gamma": 0.8},
        {"logged_actions": LoggedActions.of([[1, 0, 1], [2, 3, 0], [0, 4, 1]], NVEC)},
    ],
    ids=lambda fields: "-".join(fields) or "published",
)
def test_a_step_is_that_of_the_losses_of_each_row(fields: dict[str, Any]) -> None:
    d3rlpy.seed(0)
    algo: Any = BraVE(
        encoder_factory=SMALL, learning_rate=0.05, optim_factory=SGDFactory(), **fields
    )
    buffer = random_buffer()
    algo.build_with_dataset(buffer)
    spread(algo)
    batch = buffer.sample_transition_batch(29)
    assert batch.terminals.any()
    loss, td_loss = plain_losses(algo, batch)
    parameters = list(algo.impl.modules.network.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    before = [p.detach().clone() for p in parameters]
    metrics = algo.update(batch)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["td_loss"] == pytest.approx(td_loss.item(), rel=1e-5)
    for p, old, gradient in zip(parameters, before, gradients, strict=True):
        assert torch.allclose(p, old - 0.05 * gradient, atol=1e-5)


def test_each_switch_changes_the_step() -> None:
    results = []
    for fields in (
        {},
        {"stop_at_terminals": True},
        {"detach_targets": True},
        {"overwrite_branch_values": True},
        {"bootstrap_factor": 1.0},
    ):
        d3rlpy.seed(0)
        algo: Any = BraVE(
            encoder_factory=SMALL, learning_rate=0.05, optim_factory=SGDFactory(), **fields
        )
        algo.build_with_dataset(random_buffer())
        spread(algo)
        buffer = random_buffer()
        algo.update(buffer.transitions(torch.arange(buffer.transition_count)))  # with all ends
        results.append(algo.impl.modules.network.head.weight.tolist())
    assert all(one != other for one, other in itertools.combinations(results, 2))


# -- training --------------------------------------------------------------------------------


def test_the_target_network_is_copied_and_the_rate_falls() -> None:
    algo: Any = BraVE(
        encoder_factory=SMALL, target_update_interval=3, lr_decay=0.5, learning_rate=1e-2
    )
    same = []

    def compare(algo: Any, _epoch: int, _step: int) -> None:
        pairs = zip(
            algo.impl.modules.network.parameters(),
            algo.impl.modules.targ_network.parameters(),
            strict=True,
        )
        same.append(all(torch.equal(a, b) for a, b in pairs))

    algo.fit(random_buffer(), n_steps=7, callback=compare, **QUIET)
    assert same == [False, False, True, False, False, True, False]
    assert algo.impl.modules.optim.optim.param_groups[0]["lr"] == 1e-2 * 0.5**7


@pytest.mark.parametrize("prioritized", [True, False])
def test_a_resumed_run_ends_like_an_uninterrupted_one(prioritized: bool, tmp_path: Path) -> None:
    def run(folder: Path, n_steps: int) -> dict[str, torch.Tensor]:
        d3rlpy.seed(4)
        algo: Any = BraVE(encoder_factory=SMALL, prioritized=prioritized, target_update_interval=4)
        options = {"checkpoint_dir": folder, "resume": True, "n_steps_per_epoch": 3}
        algo.fit(random_buffer(), n_steps=n_steps, **options, **QUIET)
        state: dict[str, torch.Tensor] = algo.impl.modules.network.state_dict()
        return state

    whole = run(tmp_path / "whole", 12)
    run(tmp_path / "parts", 6)
    resumed = run(tmp_path / "parts", 12)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_batches_are_drawn_in_proportion_to_errors() -> None:
    buffer = random_buffer()
    replay = PrioritizedReplay(buffer)
    rows = replay.sample_transition_batch(50_000).rows
    counts = torch.bincount(rows, minlength=len(buffer.observations))
    assert (counts[buffer.observation_index.long()] > 100).all()  # all alike at first: about 234
    chosen = buffer.observation_index.long()
    replay.update(chosen, torch.zeros(len(chosen)))
    replay.update(chosen[:2], torch.tensor([-3.0, 1.0]))
    batch = replay.sample_transition_batch(4000)
    assert set(batch.rows.tolist()) == set(chosen[:2].tolist())
    assert (batch.rows == chosen[0]).float().mean().item() == pytest.approx(0.75, abs=0.04)
    first = batch.rows == chosen[0]
    assert torch.equal(batch.actions[first][0], buffer.actions[0].long())
    assert replay.with_horizon(None) is replay


def test_fit_keeps_the_errors_of_its_batches() -> None:
    seen: list[torch.Tensor] = []
    algo: Any = BraVE(encoder_factory=SMALL, batch_size=19)

    def look(algo: Any, _epoch: int, _step: int) -> None:
        seen.append(algo.impl.replay.priorities.clone())

    algo.fit(random_buffer(), n_steps=2, callback=look, **QUIET)
    assert 5 < (seen[0] != 1.0).sum() - (seen[0] == 0.0).sum() <= 19
    assert not torch.equal(seen[0], seen[1])
    assert algo.impl.replay is None  # another dataset has other rows


def test_actions_outside_of_the_tree_are_learned_from_but_not_chosen() -> None:
    logged = LoggedActions.of([[2, 4, 1], [1, 0, 0]], NVEC)
    algo: Any = BraVE(encoder_factory=SMALL, logged_actions=logged)
    algo.fit(random_buffer(), n_steps=3, **QUIET)
    x = random_buffer().observations[:40].numpy()
    chosen = {tuple(a) for a in algo.predict(x).tolist()}
    assert chosen <= {tuple(a) for a in algo.impl.tree.actions.tolist()}
    assert algo.config.logged_actions is logged


def test_the_tree_is_saved_with_the_policy(tmp_path: Path) -> None:
    algo: Any = BraVE(encoder_factory=SMALL)
    algo.fit(random_buffer(), n_steps=3, **QUIET)
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert loaded.config.logged_actions == algo.config.logged_actions
    x = random_buffer().observations.numpy()
    assert loaded.predict(x).tolist() == algo.predict(x).tolist()
    broken: Any = BraVE(encoder_factory=SMALL)
    broken.fit(random_buffer(), n_steps=1, **QUIET)
    broken.config.logged_actions = LoggedActions.of([[0, 0, 2]], [*NVEC[:-1], 3])
    save_policy(broken, tmp_path / "broken.safetensors")
    with pytest.raises(InvalidCheckpointError):
        load_policy(tmp_path / "broken.safetensors")


# -- what it refuses -------------------------------------------------------------------------


def everything_goes(actions: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(actions), *SlotLayout(NVEC).padding.shape, dtype=torch.bool)


def test_rules_and_masks_are_refused_before_anything_trains(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"BraVE keeps no rules.*SPINIDQL"):
        BraVEConfig(rules=[everything_goes])
    ruled, masked = random_buffer(), random_buffer()
    ruled.rules = [as_named_rule(everything_goes)]
    with pytest.raises(ValueError, match="BraVE keeps no rules"):
        BraVE(encoder_factory=SMALL).fit(ruled, n_steps=1, **QUIET)
    algo: Any = BraVE(encoder_factory=SMALL)
    algo.build_with_dataset(random_buffer())
    x, masks = masked.observations[:2].numpy(), np.ones((len(NVEC), max(NVEC)), bool)
    attempts: list[Any] = [
        lambda: algo.predict_masked(x, masks),
        lambda: algo.predict_masked(x, masks, sample=True),
        lambda: algo.save_policy(str(tmp_path / "policy.pt"), masks=True),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match="BraVE keeps no masks"):
            attempt()


def test_a_dataset_with_masks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceReplayBuffer, "masks", property(lambda self: torch.ones(3)))
    with pytest.raises(InvalidDatasetError, match="BraVE keeps no masks"):
        BraVE(encoder_factory=SMALL).fit(random_buffer(), n_steps=1, **QUIET)


def test_without_data_it_says_what_is_missing(tmp_path: Path) -> None:
    algo: Any = BraVE(encoder_factory=SMALL)
    data = random_buffer()
    algo.build_with_env(SignEnv())
    x = data.observations[:2].numpy()
    for attempt in (
        lambda: algo.predict(x),
        lambda: algo.update(data.sample_transition_batch(5)),
        lambda: save_policy(algo, tmp_path / "policy.safetensors"),
        lambda: algo.fit_online(SignEnv(), n_steps=2, **QUIET),
    ):
        with pytest.raises(RuntimeError, match=r"BraVE has no actions.*build_with_dataset"):
            attempt()
    algo.build_with_dataset(data)
    assert algo.predict(x).shape == (2, len(NVEC))


def test_logged_actions_of_another_space_are_refused() -> None:
    logged = LoggedActions.of([[0, 0]], [2, 2])
    with pytest.raises(NvecMismatchError, match="its logged_actions has nvec"):
        BraVE(encoder_factory=SMALL, logged_actions=logged).build_with_dataset(random_buffer())


def test_the_networks_layout_has_a_column_for_every_choice_but_the_first() -> None:
    algo: Any = BraVE(encoder_factory=SMALL)
    algo.build_with_dataset(random_buffer())
    network = algo.impl.modules.network
    assert network.columns.tolist() == [1, 2, 4, 5, 6, 7, 9]
    assert network.head.out_features == 1 + sum(m - 1 for m in NVEC)
    assert SlotLayout([2] * 16).total - 16 + 1 == 17  # 2 D + 1 for CoNE's 2 D bits
