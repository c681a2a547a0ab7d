"""Policy files: that they hold everything, and that bad ones do no harm."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.algos import DiscreteBCConfig, DQNConfig
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import StandardObservationScaler

from spin_d3rlpy import FactoredBCQ, FactoredIQL, load_policy, save_policy
from spin_d3rlpy.errors import InvalidCheckpointError
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    each_algorithm,
    has_field,
    new_algorithm,
    random_buffer,
    tiny_fields,
)
from tests.saved_files import read_saved, write_saved


def _trained(algo_class: Any, **fields: Any) -> Any:
    d3rlpy.seed(1)
    algo = new_algorithm(algo_class, **{"batch_size": 19, **tiny_fields(algo_class), **fields})
    algo.fit(random_buffer(), n_steps=3, logger_adapter=NoopAdapterFactory(), show_progress=False)
    return algo


@pytest.fixture(scope="module")
def trained() -> Any:
    return _trained(FactoredIQL)


@pytest.fixture
def observations() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)


@each_algorithm
def test_a_loaded_policy_acts_and_values_the_same(
    algo_class: Any, tmp_path: Path, observations: np.ndarray
) -> None:
    algo = _trained(algo_class, observation_scaler=StandardObservationScaler())
    path = tmp_path / "policy.safetensors"
    save_policy(algo, path)
    loaded = load_policy(path)
    assert type(loaded) is algo_class
    assert loaded.config.serialize_to_dict() == algo.config.serialize_to_dict()
    assert loaded.grad_step == 3
    assert np.array_equal(loaded.predict(observations), algo.predict(observations))
    if has_field(algo_class, "n_critics"):
        actions = algo.predict(observations)
        assert np.array_equal(
            loaded.predict_value(observations, actions), algo.predict_value(observations, actions)
        )
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@each_algorithm
def test_training_goes_on_from_a_loaded_policy(algo_class: Any, tmp_path: Path) -> None:
    algo = _trained(algo_class)
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    if hasattr(algo_class, "pretrain") and algo.config.policy.first_stages():
        assert getattr(loaded, "is_pretrained") is True  # noqa: B009
    before = {k: v.clone() for k, v in _networks(loaded).items()}
    loaded.fit(random_buffer(), n_steps=2, logger_adapter=NoopAdapterFactory(), show_progress=False)
    assert loaded.grad_step == 5
    assert any(not torch.equal(v, before[k]) for k, v in _networks(loaded).items())


def _networks(algo: Any) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value
        for name, network in algo.impl.modules.get_torch_modules().items()
        for key, value in network.state_dict().items()
    }


def test_only_built_algorithms_of_this_package_are_saved(tmp_path: Path) -> None:
    stock: Any = DiscreteBCConfig().create()
    with pytest.raises(TypeError, match="DiscreteBC"):
        save_policy(stock, tmp_path / "policy")
    with pytest.raises(RuntimeError, match="build_with_dataset"):
        save_policy(FactoredIQL(), tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="save_policy"):
        load_policy(tmp_path / "nothing")


def _params(header: Any) -> Any:
    return header["algorithm"]["config"]["params"]


Change = Callable[[Any, dict[str, torch.Tensor]], object]

CHANGES: dict[str, tuple[Change, str]] = {
    "other format": (lambda h, w: h.update(format="other"), "not a spin-d3rlpy policy"),
    "other version": (lambda h, w: h.update(version=2), "format version 2"),
    "no steps": (lambda h, w: h.update(grad_step="many"), "not a number"),
    "negative steps": (lambda h, w: h.update(grad_step=-1), "not a number"),
    "no algorithm": (lambda h, w: h.pop("algorithm"), "algorithm"),
    "unknown type": (lambda h, w: h["algorithm"]["config"].update(type="os.system"), "os.system"),
    "stock type": (
        lambda h, w: h["algorithm"].update(
            config={"type": "dqn", "params": {**DQNConfig().serialize_to_dict(), "nvec": NVEC}}
        ),
        "unknown to this package",
    ),
    "other algorithm": (
        lambda h, w: h["algorithm"]["config"].update(type="spin_d3rlpy_bc"),
        "unknown field",
    ),
    "unknown encoder": (
        lambda h, w: _params(h)["policy"].update(type="eval"),
        "eval",
    ),
    "too few weights": (lambda h, w: w.pop(sorted(w)[0]), "'nothing'|nothing"),
    "a weight too many": (lambda h, w: w.update(extra=torch.zeros(1)), "needs extra as nothing"),
    "another shape": (
        lambda h, w: w.update({sorted(w)[0]: torch.zeros(3, 3, 3)}),
        "it holds",
    ),
    "another type": (
        lambda h, w: w.update({sorted(w)[0]: w[sorted(w)[0]].half()}),
        "it holds",
    ),
    "not finite": (lambda h, w: w[sorted(w)[0]].view(-1)[0].fill_(torch.nan), "not finite"),
    "no nvec": (lambda h, w: _params(h).update(nvec=None), "NoneType"),
    "empty nvec": (lambda h, w: _params(h).update(nvec=[]), "positive"),
    "negative nvec": (lambda h, w: _params(h).update(nvec=[3, -5, 2]), "positive"),
    "text nvec": (lambda h, w: _params(h).update(nvec="325"), "positive"),
    "other nvec": (lambda h, w: _params(h).update(nvec=[5, 3, 3]), "it holds"),
    "huge nvec": (lambda h, w: _params(h).update(nvec=[10**12]), "fewer weights"),
    "many slots": (lambda h, w: _params(h).update(nvec=[1] * 10**6), "fewer weights"),
    "ragged nvec": (lambda h, w: _params(h).update(nvec=[900] + [1] * 900), "fewer weights"),
    "huge observations": (
        lambda h, w: h["algorithm"].update(observation_shape=[10**12]),
        "fewer weights",
    ),
    "image observations": (
        lambda h, w: h["algorithm"].update(observation_shape=[1, 4, 4]),
        "flat observations",
    ),
    "huge layers": (
        lambda h, w: _params(h)["policy"]["params"]["encoder_factory"]["params"].update(
            hidden_units=[10**9]
        ),
        "it holds",
    ),
    "many critics": (lambda h, w: _params(h).update(n_critics=10**9), "n_critics in"),
}


def _rewrite(path: Path, change: Change) -> None:
    header, weights = read_saved(path)
    change(header, weights)
    write_saved(path, header, weights)


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_what_does_not_fit_together_is_refused_in_little_memory(
    kind: str, trained: Any, tmp_path: Path
) -> None:
    change, problem = CHANGES[kind]
    path = tmp_path / "policy.safetensors"
    save_policy(trained, path)
    _rewrite(path, change)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidCheckpointError, match=problem) as caught:
            load_policy(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 2**26


def test_noise_of_any_number_of_candidates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(_trained(FactoredBCQ), path)
    _rewrite(path, lambda h, w: _params(h).update(n_action_samples=10**9))
    with pytest.raises(InvalidCheckpointError, match="fewer weights"):
        load_policy(path)


def test_files_over_the_limit_are_refused_unread(trained: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(trained, path)
    size = path.stat().st_size
    with pytest.raises(InvalidCheckpointError, match=rf"{size} bytes, over the limit of 1000"):
        load_policy(path, max_bytes=1000)
    assert load_policy(path, max_bytes=size).impl is not None


def test_a_huge_configuration_is_refused(trained: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_policy(trained, path)
    _rewrite(path, lambda h, w: h.update(padding=" " * 2**24))
    with pytest.raises(InvalidCheckpointError, match="configuration has"):
        load_policy(path)


def test_a_pickle_is_refused_and_not_run(trained: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.d3"
    trained.save(str(path))
    with pytest.raises(InvalidCheckpointError, match=str(path)):
        load_policy(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, struct.pack("<Q", 2**62), b"{}", b"[" * 9999])
def test_what_is_no_safetensors_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_bytes(content)
    with pytest.raises(InvalidCheckpointError, match="policy"):
        load_policy(path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.999])
def test_a_truncated_file_is_refused(share: float, trained: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy"
    save_policy(trained, path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(InvalidCheckpointError, match="policy"):
        load_policy(path)
