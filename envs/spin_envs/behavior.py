"""Behavior policies: small arrays shipped with the package, evaluated with NumPy only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spin_envs.scripted import ScriptedPolicy, scripted_levels
from spin_envs.tasks import BenchmarkTask

LAYER_NORM_EPSILON = 1e-5  # torch's


class BehaviorPolicy:
    """The greedy policy of an ensemble of residual Q networks with per-slot utilities.

    Each of E networks is: linear to width D; blocks of LayerNorm, linear to hidden, ReLU, linear to
    D, added to the input; LayerNorm; linear to `S = sum(head_nvec)` utilities. The action is the
    per-slot argmax of the ensemble's mean. Arithmetic is float64, so that BLAS rounding does not
    flip near ties.

    If `nvec` differs from `head_nvec` (both evenly spaced over an actuator's range), utilities are
    logits, and a slot takes the choice nearest to the distribution's mean.

    Args:
        arrays: `nvec (N,)`, optional `head_nvec (N,)`, `mean (obs,)`, `std (obs,)` (with its
            epsilon), `clip ()`, `input.weight (E, obs, D)`, `input.bias (E, D)`, for each block `b`
            `block{b}.norm.weight`, `block{b}.norm.bias`, `block{b}.up.weight (E, D, hidden)`,
            `block{b}.up.bias`, `block{b}.down.weight`, `block{b}.down.bias`; `norm.weight`,
            `norm.bias`, `head.weight (E, D, S)`, `head.bias (E, S)`.
        record: its training and scores (see `policies/*.json`).
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], record: Mapping[str, Any]) -> None:
        self.record = dict(record)
        self.nvec: NDArray[np.int64] = np.asarray(arrays["nvec"], dtype=np.int64)
        self._w = {k: np.asarray(v, dtype=np.float64) for k, v in arrays.items()}
        self._n_blocks = sum(k.endswith(".up.weight") for k in arrays)
        head_nvec = np.asarray(arrays.get("head_nvec", self.nvec), dtype=np.int64)
        self._takes_mean = bool((head_nvec != self.nvec).any())
        self._slots = np.split(np.arange(head_nvec.sum()), np.cumsum(head_nvec)[:-1])

    def utilities(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns the ensemble's mean utilities `(B, S)` for observations `(B, obs)`."""
        w = self._w
        x = np.clip((observations - w["mean"]) / w["std"], -w["clip"], w["clip"])
        h = x @ w["input.weight"] + w["input.bias"][:, None]  # (E, B, D)
        for b in range(self._n_blocks):
            inner = self._normalize(h, f"block{b}.norm")
            inner = inner @ w[f"block{b}.up.weight"] + w[f"block{b}.up.bias"][:, None]
            np.maximum(inner, 0, out=inner)
            h = h + inner @ w[f"block{b}.down.weight"] + w[f"block{b}.down.bias"][:, None]
        out = self._normalize(h, "norm") @ w["head.weight"] + w["head.bias"][:, None]
        mean: NDArray[np.float64] = out.mean(0)
        return mean

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns actions `(B, N)` for observations `(B, obs)`."""
        utilities = self.utilities(observations)
        slots = [utilities[:, slot] for slot in self._slots]
        if self._takes_mean:
            return np.stack([*map(_nearest_to_mean, slots, self.nvec)], axis=1)
        return np.stack([slot.argmax(1) for slot in slots], axis=1)

    def digest(self) -> str:
        """Returns a SHA-256 of the arrays; policies with equal digests act the same."""
        digest = hashlib.sha256()
        for name, array in sorted(self._w.items()):
            digest.update(f"{name} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _normalize(self, h: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        centered = h - h.mean(-1, keepdims=True)
        variance = (centered * centered).mean(-1, keepdims=True)
        scale = self._w[f"{name}.weight"][:, None] / np.sqrt(variance + LAYER_NORM_EPSILON)
        normalized: NDArray[np.float64] = centered * scale + self._w[f"{name}.bias"][:, None]
        return normalized

    @classmethod
    def from_files(cls, arrays: Path, record: Path) -> BehaviorPolicy:
        with np.load(arrays, allow_pickle=False) as data:
            return cls({k: data[k] for k in data.files}, json.loads(record.read_text()))


def _nearest_to_mean(logits: NDArray[np.float64], n_choices: int) -> NDArray[np.int64]:
    """Returns the choices of `n_choices` nearest to the means of distributions `(B, K)`."""
    weights = np.exp(logits - logits.max(1, keepdims=True))
    place = weights @ np.linspace(0.0, 1.0, logits.shape[1]) / weights.sum(1)
    nearest: NDArray[np.int64] = np.rint(place * (n_choices - 1)).astype(np.int64)
    return nearest


def _policy_folder() -> Path:
    return Path(str(resources.files("spin_envs"))) / "policies"


def policy_name(task: BenchmarkTask, level: str) -> str:
    """Returns a shipped policy's name, e.g. `cheetah-run-b3-expert`."""
    return f"{task.name}-{level}"


def policy_task(name: str) -> BenchmarkTask:
    """Returns a policy's task by its name from `policy_name`."""
    return BenchmarkTask.parse(name.rpartition("-")[0])


def shipped_policies() -> list[str]:
    """Returns the names of the shipped policies."""
    return sorted(p.stem for p in _policy_folder().glob("*.npz"))


def has_behavior_policy(name: str) -> bool:
    """Whether `load_behavior_policy` knows this name."""
    return name in shipped_policies() or _scripted(name) is not None


def _scripted(name: str) -> ScriptedPolicy | None:
    """Returns the rule of this name, if there is one."""
    try:
        task = policy_task(name)
    except ValueError:
        return None
    level = name.rpartition("-")[2]
    return ScriptedPolicy(task, level) if level in scripted_levels(task) else None


def load_behavior_policy(name: str) -> BehaviorPolicy | ScriptedPolicy:
    """Loads a shipped policy, or makes one that is a rule; FileNotFoundError lists the shipped."""
    if rule := _scripted(name):
        return rule
    shipped = shipped_policies()
    if name not in shipped:
        raise FileNotFoundError(
            f"No behavior policy {name!r}. Shipped: {', '.join(shipped) or 'none'}."
        )
    arrays = _policy_folder() / f"{name}.npz"
    return BehaviorPolicy.from_files(arrays, arrays.with_suffix(".json"))
