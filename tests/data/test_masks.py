"""Masks of states: read, checked, stored as bits, kept by whatever makes a dataset of another."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiDiscrete

from spin_d3rlpy import FactoredBCQ, collect, from_table, load_dataset, save_dataset
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.masks import BITS_KEY, bytes_of, mask_of_info, pack, unpack
from spin_d3rlpy.data.minari.staging import episode_buffer, staged_dataset, write_episodes
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError

NVEC = [3, 5, 2]


def random_masks(rows: int, nvec: list[int] = NVEC, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((rows, len(nvec), max(nvec))) < 0.6


@pytest.mark.parametrize("nvec", [NVEC, [2], [4, 4], [1, 9, 17]])
def test_bits_give_the_masks_back(nvec: list[int]) -> None:
    masks = random_masks(20, nvec)
    bits = pack(masks, nvec)
    assert bits.shape == (20, bytes_of(nvec))
    restored = unpack(torch.from_numpy(bits), nvec).numpy()
    for slot, m in enumerate(nvec):
        assert np.array_equal(restored[:, slot, :m], masks[:, slot, :m])
        assert not restored[:, slot, m:].any()


class MaskedEnv(gymnasium.Env[Any, Any]):
    """Five steps; in state t, slot i may not choose (t + i) modulo its number of choices."""

    action_space = MultiDiscrete(NVEC)
    observation_space = Box(-1, 99, (1,), np.float32)

    def __init__(self, form: str = "array") -> None:
        self.form, self.t = form, 0

    def mask(self) -> np.ndarray[Any, Any]:
        allowed = np.ones((3, 5), np.int8)
        for slot, m in enumerate(NVEC):
            allowed[slot, (self.t + slot) % m] = 0
        return allowed

    def _state(self) -> tuple[Any, dict[str, Any]]:
        mask: Any = self.mask()
        if self.form == "slots":
            mask = tuple(row[:m] for row, m in zip(mask, NVEC, strict=True))
        over = self.t == 5
        info = {"action_mask": np.zeros_like(self.mask()) if over else mask}
        if self.form == "none" or (self.form == "some" and self.t == 2):
            info = {}
        return np.array([self.t], np.float32), info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._state()

    def step(self, action: Any) -> Any:
        self.t += 1
        state, info = self._state()
        return state, 1.0, False, self.t == 5, info


def first_allowed(_: Any, mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(mask.argmax(1))


def played(form: str = "array", episodes: int = 3) -> DeviceReplayBuffer:
    return collect(MaskedEnv(form), first_allowed, episodes, progress=False, with_masks=True)


@pytest.mark.parametrize("form", ["array", "slots"])
def test_masks_of_an_environment_are_collected(form: str) -> None:
    buffer = played(form)
    assert buffer.masks is not None
    assert buffer.masks.dtype == torch.uint8
    assert buffer.masks.shape == (18, 2)
    masks = buffer.masks_at(torch.arange(18))
    assert masks is not None
    for row in range(18):
        t = row % 6
        for slot, m in enumerate(NVEC):
            # Nothing is chosen in the last state: the empty mask of the environment means no limit.
            expected = [t == 5 or k != (t + slot) % m for k in range(m)]
            assert masks[row, slot, :m].tolist() == expected
            assert not masks[row, slot, m:].any()
    without = collect(MaskedEnv("none"), lambda _: np.array([2, 4, 1]), 2, progress=False)
    assert without.masks is None
    assert without.masks_at(torch.arange(2)) is None


def test_what_a_mask_forbids_cannot_be_in_the_data() -> None:
    with pytest.raises(InvalidDatasetError, match=r"Slot 0 at step 0 of episode 0 is 0.*mask"):
        collect(MaskedEnv(), lambda _: np.array([0, 0, 0]), 1, progress=False)
    with pytest.raises(InvalidDatasetError, match=r"step 2 of episode 0 has none"):
        played("some")
    with pytest.raises(InvalidDatasetError, match=r"with_masks=False"):
        played("none")
    with pytest.raises(InvalidDatasetError, match=r"shape \(N, K\) = \(3, 5\).*nvec="):
        mask_of_info({"action_mask": np.ones((2, 5))}, NVEC)
    with pytest.raises(InvalidDatasetError, match="True and False"):
        mask_of_info({"action_mask": np.full((3, 5), 2)}, NVEC)


def test_masks_are_kept_by_other_datasets_of_the_same_episodes() -> None:
    buffer = played(episodes=4)
    assert buffer.masks is not None
    chosen = buffer.select([2, 0])
    assert chosen.masks is not None
    rows = [*range(12, 18), *range(6)]
    assert torch.equal(chosen.masks, buffer.masks[rows])
    for part in buffer.split(0.5):
        assert part.masks is not None
        assert len(part.masks) == len(part.observations)
    assert buffer.with_actions(buffer.actions).masks is buffer.masks
    assert buffer.with_horizon(0.9).masks is buffer.masks
    assert buffer.to("cpu").masks is buffer.masks


def test_masks_are_stored_with_the_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffer = played()
    save_dataset(buffer, "user/masked-v0")
    loaded, _ = load_dataset("user/masked-v0", env=MaskedEnv())
    assert loaded.masks is not None
    assert buffer.masks is not None
    assert torch.equal(loaded.masks, buffer.masks)


@pytest.mark.parametrize("form", ["array", "dict"])
def test_masks_as_environments_give_them_are_read(
    form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Minari's collector stores `info` as it came."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space: Any = MaskedEnv.observation_space
    buffer, states = played(episodes=1), np.arange(6, dtype=np.float32)[:, None]
    observations: Any = states if form == "array" else {"t": states}
    episode = episode_buffer(observations, buffer.actions.numpy(), np.ones(5), False)
    masks = np.stack([info_of(t) for t in range(6)])
    episode = dataclasses.replace(episode, infos={"action_mask": masks})
    with staged_dataset("user/infos-v0") as staging:
        assert staging is not None
        space = space if form == "array" else Dict({"t": space})
        storage = write_episodes(staging, space, MaskedEnv.action_space, None, [episode])
        storage.update_metadata({"dataset_id": "user/infos-v0"})
    read = DeviceReplayBuffer.from_minari(minari.load_dataset("user/infos-v0"))
    assert read.masks is not None
    assert buffer.masks is not None
    assert torch.equal(read.masks, buffer.masks)


def info_of(t: int) -> np.ndarray[Any, Any]:
    env = MaskedEnv()
    env.t = t
    mask: np.ndarray[Any, Any] = env._state()[1]["action_mask"]
    return mask


def test_damaged_masks_in_a_file_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import h5py

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save_dataset(played(), "user/bad-v0")
    with h5py.File(tmp_path / "user/bad-v0/data/main_data.hdf5", "a") as file:
        infos = file["episode_1/infos"]
        del infos[BITS_KEY]
        infos[BITS_KEY] = np.zeros((6, 2), np.uint8)
    with pytest.raises(InvalidDatasetError, match=r"Slot 0 at step 0 of episode 1.*forbids"):
        load_dataset("user/bad-v0", env=MaskedEnv())
    with h5py.File(tmp_path / "user/bad-v0/data/main_data.hdf5", "a") as file:
        del file["episode_1/infos"][BITS_KEY]
    with pytest.raises(InvalidDatasetError, match="masks of all episodes or of none"):
        load_dataset("user/bad-v0", env=MaskedEnv())


def table(**changes: Any) -> dict[str, Any]:
    return {
        "patient": [1, 1, 1, 2, 2],
        "pulse": [60.0, 61.0, 62.0, 70.0, 71.0],
        "drug": ["a", "b", None, "b", "b"],
        "dose": [0, 2, None, 1, 0],
        "reward": [0.0, 1.0, None, 0.0, 1.0],
        "b_ok": ["yes", "yes", None, True, 1],
        "a_ok": [1, 0, None, 0, 1],
        **changes,
    }


def read(masks: Any, **changes: Any) -> DeviceReplayBuffer:
    columns = {k: np.array(v, object) for k, v in table(**changes).items()}
    return from_table(
        columns,
        observations=["pulse"],
        actions=["drug", "dose"],
        choices={"drug": ["a", "b"], "dose": [0, 1, 2]},
        reward="reward",
        episode="patient",
        masks=masks,
    )


COLUMNS = {"drug": ["a_ok", "b_ok"]}


def test_masks_are_columns_of_a_table_or_an_array() -> None:
    buffer = read(COLUMNS)
    masks = buffer.masks_at(torch.arange(len(buffer.observations)))
    assert masks is not None
    first = [[True, True], [False, True], [True, True], [False, True], [True, True]]
    assert masks[:5, 0, :2].tolist() == first
    assert masks[:, 1].all()  # no columns: free
    array = np.ones((5, 2, 3), bool)
    array[1, 1, :2] = False
    masks = read(array).masks_at(torch.arange(6))
    assert masks is not None
    assert masks[1].tolist() == [[True, True, False], [False, False, True]]


@pytest.mark.parametrize(
    ("masks", "changes", "error", "message"),
    [
        (
            COLUMNS,
            {"a_ok": [0, 0, None, 0, 1]},
            InvalidDatasetError,
            "Row 0 has 'drug' = 'a'",
        ),
        (COLUMNS, {"a_ok": [1, None, 1, 0, 1]}, InvalidDatasetError, "Row 1 has no 'a_ok'"),
        (COLUMNS, {"a_ok": [1, "?", 1, 0, 1]}, InvalidDatasetError, "Row 1 has 'a_ok' = '\\?'"),
        ({"drug": ["a_ok"]}, {}, NvecMismatchError, "2 of 'drug', 3 of 'dose'"),
        ({"pill": ["a_ok", "b_ok"]}, {}, NvecMismatchError, "got 'pill'"),
        ({"drug": ["a_ok", "c_ok"]}, {}, InvalidDatasetError, "no column 'c_ok'"),
        (np.ones((4, 2, 3), bool), {}, InvalidDatasetError, "the table's 5 rows"),
        (np.ones((5, 2, 4), bool), {}, InvalidDatasetError, r"\(rows, 2, 3\)"),
        (np.full((5, 2, 3), 0.5), {}, InvalidDatasetError, "True and False"),
    ],
)
def test_masks_that_do_not_fit_are_refused(
    masks: Any, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(masks, **changes)


def test_online_verbs_of_d3rlpy_warn_once_that_they_keep_no_masks() -> None:
    algo = FactoredBCQ()
    with pytest.warns(UserWarning, match="with_masks=True") as caught:
        algo.collect(MaskedEnv(), n_steps=20, show_progress=False)
    assert len([w for w in caught if "action_mask" in str(w.message)]) == 1
