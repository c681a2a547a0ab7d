"""Rules in the config: whatever acts, values, saves, exports or teaches keeps them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import (
    SAINTIQL,
    SPINIDQL,
    AutoregressiveBC,
    AutoregressiveBCQ,
    AutoregressiveIQL,
    DecQN,
    DecQNBCQ,
    DecQNOneStep,
    FactoredAWAC,
    FactoredBC,
    FactoredBCQ,
    FactoredIDQL,
    FactoredIQL,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
    load_policy,
    relabel,
    save_policy,
)
from spin_d3rlpy.algos.impl import best_choices
from spin_d3rlpy.asm.rule_files import as_named_rule, imported, trusted_rules
from spin_d3rlpy.asm.rules import all_different, at_most_changed, every, never, within_budget
from spin_d3rlpy.errors import (
    InvalidCheckpointError,
    NoAllowedChoiceError,
    NvecMismatchError,
    UntrustedRuleError,
)
from spin_d3rlpy.evaluation.probabilities import SampledPolicy
from spin_d3rlpy.nvec import SlotLayout
from tests.algos.problems import OBSERVATION_SIZE, new_algorithm, random_buffer, tiny_fields
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
NVEC = [4, 4, 4]
COSTS = [[0.0, 1.0, 2.0, 3.0]] * 3
STATES = np.random.default_rng(3).normal(size=(200, OBSERVATION_SIZE)).astype(np.float32)
# Every way of acting: independent slots, slot after slot, the model itself, by values.
WAYS = [
    *(FactoredBC, FactoredIQL, SAINTIQL, AutoregressiveIQL, FactoredAWAC),
    *(FactoredBCQ, AutoregressiveBCQ, DecQN, DecQNBCQ, DecQNOneStep, SPINIDQL, FactoredIDQL),
]


def fitted(algo_class: Any, buffer: Any = None, **fields: Any) -> Any:
    torch.manual_seed(0)
    algo = new_algorithm(algo_class, **{**tiny_fields(algo_class), **fields})
    algo.fit(random_buffer(NVEC) if buffer is None else buffer, n_steps=3, **QUIET)
    return algo


def broken(actions: Any) -> int:
    return sum(len(set(action)) < len(action) for action in np.asarray(actions).tolist())


@pytest.mark.parametrize("algo_class", WAYS, ids=lambda a: a.__name__)
def test_greedy_and_sampled_actions_keep_a_rule(algo_class: Any, tmp_path: Path) -> None:
    algo = fitted(algo_class, rules=[all_different(4)])
    greedy, sampled = algo.predict(STATES), algo.sample_action(STATES)
    assert greedy.shape == sampled.shape == (200, 3)
    assert broken(greedy) == broken(sampled) == 0
    assert np.array_equal(algo.predict(STATES), greedy)
    free = fitted(algo_class)
    assert broken(free.sample_action(STATES)) > 0
    save_policy(algo, path := tmp_path / "policy.safetensors")
    loaded = load_policy(path)
    assert loaded.config.rules == [all_different(4)]
    assert np.array_equal(loaded.predict(STATES), greedy)
    assert broken(loaded.sample_action(STATES)) == 0


@pytest.mark.parametrize(
    ("algo_class", "extension"),
    [
        *((a, "pt") for a in (FactoredBC, AutoregressiveBC, SPINIDQL, DecQN, FactoredBCQ)),
        (DecQN, "onnx"),
        *(
            pytest.param(a, "onnx", marks=pytest.mark.slow)
            for a in (FactoredBC, AutoregressiveBC, SPINIDQL)
        ),
    ],
)
def test_exported_files_keep_a_rule(algo_class: Any, extension: str, tmp_path: Path) -> None:
    rules = [all_different(4), within_budget(COSTS, 5.0)]
    algo = fitted(algo_class, rules=rules)
    algo.save_policy(path := str(tmp_path / f"policy.{extension}"))
    chosen = exported_actions(path, observations=STATES)
    assert np.array_equal(chosen, algo.predict(STATES))
    assert broken(chosen) == 0
    assert (chosen.sum(1) <= 5).all()


def test_a_function_is_exported_only_where_it_is_followed(tmp_path: Path) -> None:
    algo = fitted(FactoredBC, rules=[every(all_different(4), last_slot_is_zero)])
    with pytest.raises(ValueError, match=r"test_rules:last_slot_is_zero.*\.onnx"):
        algo.save_policy(str(tmp_path / "policy.pt"))
    algo.save_policy(path := str(tmp_path / "policy.onnx"))
    assert np.array_equal(exported_actions(path, observations=STATES), algo.predict(STATES))

    undecided = fitted(FactoredBC, rules=[depends_on_numbers])
    with pytest.raises(ValueError, match=r"depends_on_numbers.*cannot be exported"):
        undecided.save_policy(str(tmp_path / "other.onnx"))
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"]


def test_a_rule_changes_only_what_breaks_it() -> None:
    free = fitted(FactoredBC)
    plain = free.predict(STATES)
    free.config.rules = [all_different(4)]
    ruled = free.predict_with(STATES, allowed=all_different(4))
    kept = [len(set(action)) == 3 for action in plain.tolist()]
    assert 0 < sum(kept) < len(plain)
    algo = fitted(FactoredBC, rules=[all_different(4)])
    assert np.array_equal(algo.predict(STATES), ruled)
    assert np.array_equal(algo.predict(STATES)[kept], plain[kept])


def test_the_slot_that_loses_most_chooses_first() -> None:
    algo = fitted(DecQN, rules=[all_different(4)])
    values = torch.tensor([[[5.0, 4.9, 0.0, 0.0], [5.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0]]])
    assert best_choices(SlotLayout(NVEC), values, algo.impl.rule).tolist() == [[1, 0, 3]]


@pytest.mark.parametrize("algo_class", [FactoredBC, AutoregressiveBC, SPINIDQL])
def test_conditions_of_a_call_hold_in_addition(algo_class: Any) -> None:
    algo = fitted(algo_class, rules=[all_different(4)])
    mask = np.ones((3, 4), bool)
    mask[0, :3] = False
    given = np.tile([-1, 2, -1], (200, 1))
    for options in ({"allowed": mask}, {"allowed": mask, "given": given}):
        chosen = algo.predict_with(STATES, **options)
        assert broken(chosen) == 0
        assert (chosen[:, 0] == 3).all()
    assert (chosen[:, 1] == 2).all()


def test_samples_by_a_rule_are_those_of_the_policy_where_it_forbids_little() -> None:
    algo = fitted(FactoredBC, rules=[at_most_changed([0, 0, 0], 3, 4)])  # forbids nothing
    states = np.repeat(STATES[:1], 20_000, axis=0)
    sampled = algo.sample_action(states)
    logits = algo.policy.slot_layout.split(algo.policy(algo.network_input(STATES[:1])))
    for slot in range(3):
        shares = np.bincount(sampled[:, slot], minlength=4) / len(sampled)
        assert np.allclose(shares, logits.softmax(-1)[0, slot].detach(), atol=0.02)


@pytest.mark.parametrize("algo_class", [FactoredBCQ, AutoregressiveBCQ, FactoredAWAC, DecQN])
def test_bootstrapped_values_are_those_of_actions_that_keep_the_rule(algo_class: Any) -> None:
    """All slots want the same choice: without the rule values are too high."""
    values = []
    for rules in ([], [at_most_changed([3, 3, 3], 0, 4)]):
        algo = fitted(algo_class, rules=rules)
        critic = algo.impl.modules.targ_q_funcs
        for q in critic:
            torch.nn.init.zeros_(q.head.weight)
            q.head.bias.data = torch.tensor([1.0, 0.0, 0.0, -5.0] * 3)
        algo.impl.modules.q_funcs.load_state_dict(critic.state_dict())
        x = algo.network_input(STATES)
        if algo_class is FactoredAWAC:
            found = algo.impl.compute_expected_values(x, x, algo.impl.rule)
        elif algo_class is DecQN:
            found = algo.impl.compute_next_values(x, algo.impl.rule)
        else:
            found = algo.impl.compute_next_values(x, x, algo.impl.rule)
        values.append(float(found.detach().mean()))
    assert values[0] > values[1]
    assert values[1] == pytest.approx(-5.0 if algo_class is DecQN else -15.0, abs=1e-4)


def test_where_nothing_supported_is_allowed_the_likeliest_allowed_choice_is_taken() -> None:
    algo = fitted(FactoredBCQ, rules=[at_most_changed([1, 2, 3], 0, 4)], action_flexibility=1.0)
    assert (algo.predict(STATES) == [1, 2, 3]).all()


def test_fitted_q_evaluation_and_students_keep_a_teachers_rule() -> None:
    teacher = fitted(SPINIDQL, rules=[all_different(4)])
    fqe = MultiDiscreteFQE(teacher, MultiDiscreteFQEConfig(batch_size=32))
    fqe.fit(random_buffer(NVEC), n_steps=2, **QUIET)
    assert fqe.impl is not None
    assert broken(fqe.impl._evaluated.predict_best_action(torch.from_numpy(STATES))) == 0
    assert broken(fqe.predict(STATES)) == 0

    taught = relabel(random_buffer(NVEC), teacher)
    assert broken(taught.actions) == 0
    student = fitted(FactoredBC, taught.split(0.2)[0])
    assert student.config.rules == [all_different(4)]
    assert broken(student.predict(STATES)) == 0
    assert broken(fitted(FactoredBC, taught, rules=[]).sample_action(STATES)) > 0
    assert taught.with_actions(taught.actions).rules is None
    with pytest.raises(TypeError, match=r"without rules.*GreedyPolicy"):
        SampledPolicy(student)


def last_slot_is_zero(partial: torch.Tensor) -> torch.Tensor:
    """A rule of a user's module."""
    mask = torch.ones(*partial.shape, 4, dtype=torch.bool, device=partial.device)
    mask[:, 2, 1:] = False
    return mask


def depends_on_numbers(partial: torch.Tensor) -> torch.Tensor:
    """A rule that no file can follow."""
    return torch.ones(*partial.shape, 4, dtype=torch.bool) & (int(partial.sum()) > -99)


def narrow(partial: torch.Tensor) -> torch.Tensor:
    """For two choices."""
    return torch.ones(*partial.shape, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    "rule",
    [
        all_different(4, except_for=[0]),
        at_most_changed([0, 1, 2], 2, 4),
        within_budget(COSTS, 4.0),
        never({0: 1, 2: 3}, 4),
        every(all_different(4), within_budget(COSTS, 4.0)),
        imported("tests.algos.test_rules:last_slot_is_zero"),
    ],
)
def test_a_config_keeps_rules_as_json(rule: Any) -> None:
    config = FactoredIQL(rules=[rule], nvec=NVEC).config
    text = json.dumps(config.serialize_to_dict())
    again = type(config).deserialize_from_dict(json.loads(text))
    assert again.rules == config.rules == [rule]
    assert as_named_rule(json.loads(json.dumps(rule.to_dict()))) == rule
    partial = torch.tensor([[-1, -1, -1], [0, 3, -1]])
    kept: Any = again.rule
    assert torch.equal(kept(partial), rule(partial))


def test_without_rules_a_config_says_nothing() -> None:
    assert FactoredIQL().config.rules is None
    assert FactoredIQL(rules=[]).config.rule is None


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module of a user's and makes sure that nothing has imported it."""

    def write(name: str) -> str:
        code = "from tests.algos.test_rules import last_slot_is_zero as rule\n"
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        return f"{name}:rule"

    return write


def test_a_function_is_kept_by_its_path_and_imported_only_with_trust(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    algo = fitted(FactoredBC, rules=[last_slot_is_zero])
    assert (algo.predict(STATES)[:, 2] == 0).all()
    path = module("clinic_rules")
    with pytest.raises(UntrustedRuleError, match=r"clinic_rules:rule.*trust=True"):
        fitted(FactoredBC, rules=[path])
    with trusted_rules():
        named = fitted(FactoredBC, rules=[path])
    save_policy(named, file := tmp_path / "policy.safetensors")
    assert load_policy(file).config.rules == named.config.rules  # imported already

    # Another process has not imported it.
    other = module("remote_rules")
    file.write_bytes(file.read_bytes().replace(b"clinic_rules:rule", b"remote_rules:rule"))
    with pytest.raises(UntrustedRuleError, match=r"remote_rules:rule.*trust=True"):
        load_policy(file)
    assert "remote_rules" not in sys.modules
    trusted = load_policy(file, trust=True)
    assert "remote_rules" in sys.modules
    assert trusted.config.rules == [imported(other)]
    assert (trusted.predict(STATES)[:, 2] == 0).all()


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ([{"name": "no_such"}], ValueError, "named all_different.*got 'no_such'"),
        ([{"name": "all_different", "k": 1}], ValueError, "'all_different' has no such arguments"),
        ([{"name": "all_different", "n_choices": 4.5}], ValueError, "no such arguments"),
        ([5], ValueError, "Expected a rule.*got 5"),
        (all_different(4), ValueError, "rules as a list"),
        ([lambda partial: partial], ValueError, "top of a module"),
        ([every(all_different(4), lambda partial: partial)], ValueError, "a rule that files can"),
        ([all_different(5)], NvecMismatchError, r"nvec=\[4, 4, 4\]: expected n_choices=4"),
        ([all_different(4, [7])], NvecMismatchError, "except_for below 4"),
        ([at_most_changed([0, 0], 1, 4)], NvecMismatchError, "a default of 3 choices"),
        ([at_most_changed([0, 0, 9], 1, 4)], NvecMismatchError, "of this action space"),
        ([within_budget([[1.0] * 4] * 2, 1.0)], NvecMismatchError, r"costs of shape \(3, 4\)"),
        ([never({0: 1}, 5)], NvecMismatchError, "expected n_choices=4"),
        ([never({3: 1}, 4)], NvecMismatchError, "slots and choices of this action space"),
        ([never({0: -1}, 4)], NvecMismatchError, "slots and choices of this action space"),
        ([every(all_different(5))], NvecMismatchError, "expected n_choices=4"),
        ([narrow], NvecMismatchError, r"masks of shape \(1, 3, 4\)"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fitted(FactoredBC, rules=rules)


def test_a_path_that_leads_nowhere_is_refused() -> None:
    for path in ("nowhere", "no_module_of_this_name:x", "json:no_such", "json:__version__x", ":x"):
        with pytest.raises(ValueError, match="rule"):
            imported(path)


def test_a_rule_without_a_choice_is_an_error() -> None:
    rule = every(all_different(4, []), within_budget([[1.0] * 4] * 3, 2.0))
    for algo_class in (FactoredBC, AutoregressiveBC):
        with pytest.raises(NoAllowedChoiceError, match="No choice is allowed for slot"):
            fitted(algo_class, rules=[rule]).predict(STATES)


def test_a_damaged_rule_in_a_file_is_a_damaged_file(tmp_path: Path) -> None:
    algo = fitted(FactoredBC, rules=[all_different(4)])
    save_policy(algo, file := tmp_path / "policy.safetensors")
    file.write_bytes(file.read_bytes().replace(b"all_different", b"all_differenT"))
    with pytest.raises(InvalidCheckpointError, match="all_differenT"):
        load_policy(file)
