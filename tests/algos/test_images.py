"""Algorithms on observations of images, alone and next to numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.models.encoders import EncoderFactory, PixelEncoderFactory, register_encoder_factory
from d3rlpy.preprocessing import StandardObservationScaler
from torch import nn

from spin_d3rlpy import (
    SPINIDQL,
    SPINIQL,
    AutoregressiveBCQ,
    FactoredBC,
    FactoredIQL,
    LockstepEvaluator,
    collect,
    load_policy,
    save_policy,
)
from spin_d3rlpy.asm import ActionStructureModel, load_asm, save_asm
from spin_d3rlpy.errors import (
    InvalidCheckpointError,
    InvalidObservationError,
    NvecMismatchError,
)
from spin_d3rlpy.images import ImageEncoderFactory, RowEncoder, RowSize
from spin_d3rlpy.runs.settings import split_fields
from spin_envs import ActionLayout
from tests.algos.conformance import CHECKS, QUIET, Case, networks, same
from tests.algos.pictures import NVEC, SMALL, PictureEnv, pictures
from tests.algos.problems import ALGORITHMS, new_algorithm, tiny_fields
from tests.exported_files import exported_actions
from tests.saved_files import read_saved, write_saved

_ALWAYS = {a.__name__ for a in (FactoredIQL, SPINIDQL, AutoregressiveBCQ)}


def case(algo_class: Any, folder: Path, **changes: Any) -> Case:
    def make_config(**fields: Any) -> Any:
        own = {"image_encoder_factory": SMALL, **tiny_fields(algo_class), **changes, **fields}
        return algo_class.config_class(**split_fields(algo_class, own))

    return Case(make_config, pictures(), PictureEnv, folder)


@pytest.mark.parametrize(
    "algo_class",
    [pytest.param(a, marks=() if a.__name__ in _ALWAYS else pytest.mark.slow) for a in ALGORITHMS],
    ids=lambda a: a.__name__,
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms_with_images(check: Any, algo_class: Any, tmp_path: Path) -> None:
    check(case(algo_class, tmp_path))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.slow
@pytest.mark.parametrize("algo_class", [SPINIDQL, FactoredIQL], ids=lambda a: a.__name__)
def test_conforms_with_a_history_of_images(check: Any, algo_class: Any, tmp_path: Path) -> None:
    plain = case(algo_class, tmp_path, history=3, history_actions=True)
    check(dataclasses.replace(plain, dataset=plain.dataset.with_history(3, actions=True)))


def test_a_history_stacks_the_channels_of_images() -> None:
    dataset = pictures()
    assert dataset.observation_layout is not None
    size = RowSize.of(dataset.observation_layout, SMALL, 3, 2)
    rows = dataset.with_history(3).observations_at(torch.arange(12, 19))
    assert rows.shape == (7, size)
    single = [dataset.observations_at(torch.arange(i, i + 7)) for i in (10, 11, 12)]
    (images,) = size.images(rows)
    frames = [one[:, 5:].unflatten(1, (6, 8, 3)).movedim(3, 1) for one in single]
    assert torch.equal(images, torch.cat(frames, dim=1))  # (7, 9, 6, 8), the oldest first
    numbers = size.numbers(rows)
    assert torch.equal(numbers[:, :15], torch.cat([one[:, :5] for one in single], dim=1))
    changed = size.with_numbers(rows, numbers + 1.0)
    assert torch.equal(size.images(changed)[0], images)
    assert torch.equal(size.numbers(changed), numbers + 1.0)
    algo = fitted(FactoredIQL, dataset.with_history(3))
    env, played = PictureEnv(), []
    observation, _ = env.reset(seed=1)  # the second episode, with other actions
    algo.reset()
    for _ in range(3):
        played.append(dataset.observation_layout.row(observation))
        action = algo.act(observation)
        observation, *_ = env.step(action)
    row = np.concatenate([*played, [0.0, 0.0]])[None].astype(np.float32)
    assert np.array_equal(algo.predict(row)[0], action)


def fitted(algo_class: Any, dataset: Any, n_steps: int = 4, **fields: Any) -> Any:
    d3rlpy.seed(1)
    own = {"image_encoder_factory": SMALL, "batch_size": 19, **tiny_fields(algo_class), **fields}
    algo = new_algorithm(algo_class, **own)
    algo.fit(dataset, n_steps=n_steps, **QUIET)
    return algo


def seen_in(dataset: Any, n: int = 5) -> tuple[Any, np.ndarray]:
    """Observations as the space has them, in arrays of n rows, and as rows."""
    rows = dataset.observations_at(torch.arange(n)).numpy()
    layout = dataset.observation_layout
    return layout.joined(*layout.split(rows, n)), rows


@pytest.mark.parametrize("kind", ["image", "mixed"])
@pytest.mark.parametrize("image", [(6, 8, 3), (3, 6, 8), (6, 8)], ids=str)
def test_observations_are_taken_as_the_environment_has_them(kind: str, image: Any) -> None:
    dataset = pictures(kind, image, episodes=3)
    algo = fitted(FactoredIQL, dataset)
    seen, rows = seen_in(dataset)
    chosen = algo.predict(rows)
    assert np.array_equal(algo.predict(seen), chosen)
    assert np.array_equal(algo.predict_value(seen, chosen), algo.predict_value(rows, chosen))
    env = PictureEnv(kind, image)
    observation, _ = env.reset(seed=0)
    assert np.array_equal(algo.act(observation), chosen[0])
    assert np.array_equal(algo.act(rows[0]), chosen[0])
    assert np.array_equal(algo.act(seen), chosen)


def test_the_image_is_learned_from() -> None:
    env = PictureEnv("image")
    env.action_space.seed(0)

    def choose(image: np.ndarray) -> np.ndarray:
        action: np.ndarray = env.action_space.sample()
        action[0] = 2 if image.mean() > 128 else 0
        return action

    dataset = collect(env, choose, episodes=30, progress=False)
    algo = fitted(FactoredBC, dataset, n_steps=60, batch_size=64, actor_learning_rate=1e-2)
    assert LockstepEvaluator(env, n_trials=5)(algo) == 9.0


@pytest.mark.parametrize("algo_class", [FactoredIQL, SPINIDQL], ids=lambda a: a.__name__)
def test_scalers_leave_images_alone(algo_class: Any) -> None:
    dataset = pictures()
    algo = fitted(algo_class, dataset, observation_scaler=StandardObservationScaler())
    assert algo.config.observation_scaler.mean.shape == (5,)
    _, rows = seen_in(dataset)
    scaled = algo.network_input(rows).numpy()
    assert np.array_equal(scaled[:, 5:], rows[:, 5:])
    mean, std = dataset.moments()
    expected = (torch.from_numpy(rows[:, :5]) - mean) / (std + 1e-3)
    assert scaled[:, :5] == pytest.approx(expected.numpy(), abs=1e-3)
    encoders = [m for m in algo.impl.policy.modules() if isinstance(m, RowEncoder)]
    assert len(encoders) == 1
    seen: list[torch.Tensor] = []
    encoders[0].encoders[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    algo.predict(rows)
    image = np.moveaxis(rows[:, 5:].reshape(5, 6, 8, 3), -1, 1) / 255.0  # channels first
    assert seen[0].numpy() == pytest.approx(image)


@pytest.mark.parametrize("algo_class", [SPINIDQL, AutoregressiveBCQ], ids=lambda a: a.__name__)
def test_a_policy_encodes_an_image_once(algo_class: Any) -> None:
    """Not for each candidate and slot."""
    dataset = pictures()
    algo = fitted(algo_class, dataset)
    rows: list[int] = []
    for part in algo.impl.policy.modules():
        if isinstance(part, RowEncoder):
            part.encoders.register_forward_pre_hook(lambda *_: None)
            part.encoders[0].register_forward_hook(lambda *seen: rows.append(len(seen[1][0])))
    algo.predict(seen_in(dataset)[1])
    assert rows == [5]
    if algo_class is SPINIDQL:
        algo.impl.policy.asm.sample(seen_in(dataset)[1], n=3)
        assert rows == [5, 5]


@pytest.mark.parametrize("algo_class", [SPINIDQL, SPINIQL], ids=lambda a: a.__name__)
def test_the_first_stage_trains_the_encoder_and_the_second_leaves_it(algo_class: Any) -> None:
    dataset = pictures()
    algo = fitted(algo_class, dataset, n_steps=1)

    def encoder() -> dict[str, torch.Tensor]:
        of_policy = networks(algo).items()
        return {k: v for k, v in of_policy if k.startswith("policy") and ".encoders." in k}

    d3rlpy.seed(1)
    fresh = ActionStructureModel(algo.impl.observation_shape[0], NVEC, algo.asm.config)
    assert encoder()
    for name, value in fresh.state_dict().items():
        if ".encoders." in name:
            assert not torch.equal(algo.asm.state_dict()[name], value), name
    before = encoder()
    algo.fit(dataset, n_steps=3, **QUIET)
    assert all(torch.equal(value, before[name]) for name, value in encoder().items())


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 4, 50), (1, 24, 80), (4, 84, 84), (3, 210, 160)], ids=str
)
def test_the_default_encoder_takes_images_of_any_size(shape: Any) -> None:
    encoder = ImageEncoderFactory(feature_size=7).create(shape)
    images = torch.rand(2, *shape)
    features = encoder(images)
    assert features.shape == (2, 7)
    assert not torch.equal(features[0], features[1])
    assert sum(p.numel() for p in encoder.parameters()) < 150_000


@pytest.mark.parametrize(
    ("factory", "least", "most"),
    [
        pytest.param(None, 0.0, 0.02, id="default"),
        pytest.param(PixelEncoderFactory([[16, 3, 2]], 64), 0.3, 1.0, id="relu"),
    ],
)
def test_features_of_the_default_encoder_stay_alive_at_the_tuned_rates(
    factory: Any, least: float, most: float
) -> None:
    """Where those of ReLUs become 0 for all images."""
    dataset = pictures("image", (1, 6, 8))
    d3rlpy.seed(0)
    algo = SPINIDQL(
        recipe="tuned", **({} if factory is None else {"image_encoder_factory": factory})
    )
    policy: Any = algo.config.policy
    pretraining = dataclasses.replace(policy.pretraining, max_updates=20, batch_size=64)
    algo.config.policy = dataclasses.replace(policy, pretraining=pretraining)
    algo.pretrain(dataset, **QUIET)
    encoder = next(part for part in cast(Any, algo.asm).modules() if isinstance(part, RowEncoder))
    _, rows = seen_in(dataset, 100)
    with torch.no_grad():
        spread = encoder(torch.from_numpy(rows)).std(0)
    assert least <= float((spread < 1e-4).float().mean()) <= most


def test_features_of_images_are_cached() -> None:
    dataset = pictures()
    fields = {"train_queries": False, "cache_features": True, "frozen_dropout": False}
    algo = fitted(SPINIQL, dataset, **fields)
    assert algo.caches_features


@pytest.mark.parametrize("algo_class", [FactoredIQL, SPINIDQL], ids=lambda a: a.__name__)
def test_policies_of_images_are_saved_resumed_and_computed_in_bfloat16(
    algo_class: Any, tmp_path: Path
) -> None:
    dataset = pictures()
    _, rows = seen_in(dataset)
    whole = fitted(algo_class, dataset, n_steps=6, precision="bfloat16")
    save_policy(whole, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert same(networks(whole), networks(loaded))
    assert np.array_equal(loaded.predict(rows), whole.predict(rows))
    options = {**QUIET, "checkpoint_dir": tmp_path / "run", "checkpoint_interval": 2}
    for n_steps, resume in ((4, False), (6, True)):
        d3rlpy.seed(1)
        own = {**tiny_fields(algo_class), "image_encoder_factory": SMALL, "batch_size": 19}
        part = new_algorithm(algo_class, precision="bfloat16", **own)
        part.fit(dataset, n_steps=n_steps, resume=resume, **options)
    assert same(networks(whole), networks(part))


def test_structure_models_of_images_are_saved_and_adopted(tmp_path: Path) -> None:
    dataset = pictures()
    algo = fitted(SPINIDQL, dataset, observation_scaler=StandardObservationScaler())
    save_asm(algo.asm, tmp_path / "asm.safetensors")
    asm = load_asm(tmp_path / "asm.safetensors")
    _, rows = seen_in(dataset)
    actions = dataset.actions[:5].numpy()
    expected = algo.asm.log_likelihood(rows, actions).per_slot
    assert torch.equal(asm.log_likelihood(rows, actions).per_slot, expected)
    other = new_algorithm(SPINIDQL, **{**tiny_fields(SPINIDQL), "batch_size": 19, "asm": asm})
    other.build_with_dataset(dataset)  # with the model's encoder, not the config's
    assert other.config.image_encoder_factory == SMALL
    refused = new_algorithm(SPINIDQL, **{**tiny_fields(SPINIDQL), "asm": asm})
    with pytest.raises(NvecMismatchError, match="pre-trained on observations of length 149"):
        refused.build_with_dataset(pictures("image"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "mixed"])
def test_exported_files_take_images(kind: str, tmp_path: Path) -> None:
    dataset = pictures(kind)
    algo = fitted(FactoredIQL, dataset, observation_scaler=StandardObservationScaler())
    seen, rows = seen_in(dataset)
    images = seen if kind == "image" else seen["camera"]
    inputs = {"observations": images}
    if kind == "mixed":
        inputs = {"numbers": rows[:, :5], "camera": images}
    algo.save_policy(path := str(tmp_path / "policy.onnx"))
    assert np.array_equal(exported_actions(path, **inputs), algo.predict(rows))


class MeanFactory(EncoderFactory):
    """An encoder that a user registers: mean and spread of each channel, and a linear layer."""

    def create(self, observation_shape: Any) -> Any:
        channels = observation_shape[0]

        class Encoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(2 * channels, 7)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                flat = x.flatten(2)
                features: torch.Tensor = self.layer(torch.cat([flat.mean(2), flat.std(2)], dim=1))
                return features

        return Encoder()

    @staticmethod
    def get_type() -> str:
        return "test_mean"


def test_encoders_that_users_register_are_used_and_saved(tmp_path: Path) -> None:
    register_encoder_factory(dataclasses.dataclass()(MeanFactory))
    dataset = pictures()
    algo = fitted(FactoredIQL, dataset, image_encoder_factory=MeanFactory())
    assert any("layer.weight" in name for name in networks(algo))
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert isinstance(loaded.config.image_encoder_factory, MeanFactory)
    assert same(networks(algo), networks(loaded))


def test_what_does_not_fit_is_refused() -> None:
    dataset = pictures()
    with pytest.raises(ValueError, match=r'observation\["camera"\] of shape \(3, 6, 8\)'):
        fitted(FactoredIQL, dataset, image_encoder_factory=PixelEncoderFactory())
    algo = fitted(FactoredIQL, dataset)
    other = PictureEnv(image=(8, 8, 3))
    seen, rows = seen_in(dataset)
    message = r'observation\["camera"\].*\(6, 8, 3\)'
    for play in (
        lambda: LockstepEvaluator(other, n_trials=1)(algo),
        lambda: algo.collect(other, n_steps=5, show_progress=False),
        lambda: algo.predict({**seen, "camera": np.zeros((5, 8, 8, 3), np.uint8)}),
        lambda: algo.act({**other.reset(seed=0)[0]}),
        lambda: algo.fit(pictures(image=(8, 8, 3)), n_steps=1, **QUIET),
    ):
        with pytest.raises(InvalidObservationError, match=message):
            play()
    with pytest.raises(InvalidObservationError, match=r"\(B, 149\), got shape \(5, 148\)"):
        algo.predict(rows[:, :-1])
    with pytest.raises(InvalidObservationError, match="from 0 to 255"):
        algo.predict({**seen, "camera": seen["camera"] * 2.0})
    with pytest.raises(ValueError, match="Images do not go together with features"):
        fitted(FactoredIQL, dataset, layout=ActionLayout(True, slot_columns=((0,), (1,), (2,))))


def _grow_camera(params: Any, shape: list[int]) -> None:
    """Makes the camera's images larger in a file's description."""
    parts = params["parts"]
    next(part for part in parts if part["is_image"])["shape"] = shape


@pytest.mark.parametrize(
    ("shape", "row", "message"),
    [
        ([6, 8, 3], 150, "rows of 149 numbers"),
        ([9, 8, 3], 5 + 9 * 8 * 3, "it holds"),
        ([9000, 9000, 3], 5 + 9000 * 9000 * 3, "fewer weights"),
        ([10**6, 10**6, 3], 5 + 3 * 10**12, "Expected an observation with images"),
        ([0, 8, 3], 5, "Expected a part"),
    ],
    ids=str,
)
def test_files_with_other_images_than_their_weights_are_refused(
    shape: list[int], row: int, message: str, tmp_path: Path
) -> None:
    algo = fitted(SPINIDQL, pictures(), n_steps=1)
    save_policy(algo, policy := tmp_path / "policy.safetensors")
    save_asm(algo.asm, asm := tmp_path / "asm.safetensors")
    header, weights = read_saved(policy)
    _grow_camera(header["algorithm"]["config"]["params"]["observation_layout"], shape)
    header["algorithm"]["observation_shape"] = [row]
    write_saved(policy, header, weights)
    header, weights = read_saved(asm)
    _grow_camera(header["images"]["layout"], shape)
    header["observation_size"] = row
    write_saved(asm, header, weights)
    with pytest.raises(InvalidCheckpointError, match=message):
        load_policy(policy)
    with pytest.raises(InvalidCheckpointError, match=message.replace("rows of 149", "rows of 150")):
        load_asm(asm)
