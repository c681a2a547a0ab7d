"""Online training of DecQN in environments stepped together, with resumable checkpoints."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from spin_d3rlpy._version import __version__
from spin_d3rlpy.algos.decqn import DecQN
from spin_d3rlpy.atomic import written_whole
from spin_d3rlpy.behavior.export import load_policy_arrays, policy_arrays
from spin_d3rlpy.behavior.recipes import Recipe
from spin_d3rlpy.behavior.replay import NStepReplay
from spin_d3rlpy.behavior.transfer import transferred
from spin_d3rlpy.nvec import nvec_from_space
from spin_d3rlpy.reports import write_csv
from spin_d3rlpy.scalers import ClippedStandardObservationScaler
from spin_envs.behavior import BehaviorPolicy, load_behavior_policy, shipped_policies
from spin_envs.rollout import rollout
from spin_envs.vector import InProcessVectorEnv, make_batch

# Probability, per environment, that a sub-action is replaced by a random one; scaled down when
# there are many sub-actions, so that the joint action does not become noise.
EXPLORATION_LADDER = np.array([0.0, 0.05, 0.1, 0.1, 0.2, 0.2, 0.4, 0.4])
N_ENVS = len(EXPLORATION_LADDER)
REPLAY_CAPACITY = 1_000_000
WARMUP_STEPS = 5_000
# Cheap beside updates: a resumed run's replay must be broad before it learns on.
RESUME_FILL_STEPS = 80_000
SCALER_INTERVAL = 1_000
EVALUATION_EPISODES = 20
EVALUATION_SEED = 10_000
RECORD_EPISODES = 100
FALL_STEPS = 10


class RunningMoments:
    """Mean and variance of a stream of rows (Chan et al.'s pairwise update)."""

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean = np.zeros(size)
        self.m2 = np.zeros(size)

    def update(self, rows: NDArray[np.float32]) -> None:
        """Adds rows `(B, size)`."""
        n = len(rows)
        mean = rows.mean(0, dtype=np.float64)
        delta = mean - self.mean
        total = self.count + n
        self.m2 += ((rows - mean) ** 2).sum(0) + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count = total

    def scaler(self) -> ClippedStandardObservationScaler:
        """Returns the scaler for the moments so far."""
        std = np.sqrt(self.m2 / max(self.count, 1.0))
        return ClippedStandardObservationScaler(
            mean=self.mean.astype(np.float32), std=std.astype(np.float32)
        )


class _Explorers:
    """The last environments of a recipe with explorers: random actions, kept for random times.

    References:
        * Dabney et al., Temporally-Extended epsilon-Greedy Exploration, 2021.
    """

    def __init__(self, recipe: Recipe, nvec: NDArray[np.int64]) -> None:
        self._nvec = nvec
        self._end = 1.0 / recipe.persistence
        self._rng = np.random.default_rng((recipe.seed, 1))  # not the stream of the others
        self._actions = self._rng.integers(nvec, size=(recipe.n_explorers, len(nvec)))

    def act(self, actions: NDArray[np.int64]) -> None:
        """Replaces their rows of all environments' actions `(N_ENVS, N)`."""
        n = len(self._actions)
        anew = self._rng.random(n) < self._end
        fresh = self._rng.integers(self._nvec, size=(n, len(self._nvec)))
        self._actions = np.where(anew[:, None], fresh, self._actions)
        actions[N_ENVS - n :] = self._actions


class _Falls:
    """Notices environments whose last `FALL_STEPS` rewards were all below the recipe's."""

    def __init__(self, recipe: Recipe) -> None:
        self._bound = -np.inf if recipe.fall_reward is None else recipe.fall_reward
        self._n_low = np.zeros(N_ENVS, dtype=np.int64)

    def notice(self, rewards: NDArray[np.float64], over: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns who has fallen `(N_ENVS,)` after a step; those `over` begin an episode next."""
        self._n_low = np.where(rewards < self._bound, self._n_low + 1, 0)
        fallen = self._n_low >= FALL_STEPS
        self._n_low[fallen | over] = 0
        return fallen & ~over


class BehaviorTrainer:
    """Trains one recipe in `folder`, leaving a snapshot of the policy at every evaluation.

    `folder` gets `checkpoint.pt` (resumed from when it exists), `curve.csv` (env_steps, mean
    greedy return, standard deviation, seconds) and `snapshots/<env_steps>.npz`. The replay is
    not part of the checkpoint: a resumed run first refills it with the policy it has.

    Args:
        recipe: what to train.
        folder: where everything goes. A recipe with an `initial` one begins with the policy of that
            name which is shipped or, where none is, selected in the folder of that name beside it.

    Raises:
        FileNotFoundError: there is no such policy.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe
        self.folder = folder
        (folder / "snapshots").mkdir(parents=True, exist_ok=True)
        task = recipe.benchmark_task
        limit = {"max_episode_steps": recipe.episode_steps} if recipe.episode_steps else {}
        envs = make_batch(task.env_id, N_ENVS, **task.env_kwargs, **limit)
        assert isinstance(envs, InProcessVectorEnv), "Benchmark tasks have one of ours."
        self._envs = envs
        space = self._envs.single_observation_space
        assert space.shape is not None
        self._nvec = nvec_from_space(self._envs.single_action_space)
        torch.manual_seed(recipe.seed)
        self._rng = np.random.default_rng(recipe.seed)
        self._moments = RunningMoments(space.shape[0])
        config = recipe.config()
        config.nvec = self._nvec
        config.observation_scaler = self._moments.scaler()
        self.algo = DecQN(config)
        self.algo.create_impl(space.shape, len(self._nvec))
        self._replay = NStepReplay(
            min(REPLAY_CAPACITY, recipe.env_steps),
            space.shape[0],
            len(self._nvec),
            N_ENVS,
            recipe.n_steps,
            config.gamma,
            recipe.seed,
        )
        self.env_steps = 0
        self.seconds = 0.0
        self._falls = _Falls(recipe)
        if (folder / "checkpoint.pt").exists():
            self._resume()
        elif recipe.initial is not None:
            self._begin_with(self._initial_policy(recipe.initial))

    def train(self, progress: bool = True) -> None:
        """Trains until the recipe's number of environment steps."""
        recipe = self.recipe
        epsilons = EXPLORATION_LADDER * min(1.0, 3.0 / len(self._nvec))
        nvec = np.array(self._nvec)
        observations, _ = self._envs.reset(seed=recipe.seed * N_ENVS)
        actions = np.zeros((N_ENVS, len(nvec)), dtype=np.int64)
        over = np.zeros(N_ENVS, dtype=np.bool_)
        explorers = _Explorers(recipe, nvec)
        fill_until = self.env_steps + (RESUME_FILL_STEPS if self.env_steps else WARMUP_STEPS)
        started = time.monotonic() - self.seconds
        bar = tqdm(
            total=recipe.env_steps, initial=self.env_steps, unit="step", disable=not progress
        )
        owed = 0.0
        while self.env_steps < recipe.env_steps:
            # The others only start an episode in this step. It is not the environments' and draws
            # no random numbers: where all episodes are equally long, nothing depends on it.
            running = np.flatnonzero(~over)
            # Not while a resumed run refills its replay: the networks do not adapt meanwhile.
            adapts = not self._has_policy() or self.env_steps >= fill_until
            if adapts and len(running):
                self._moments.update(observations[running])
            explore = self._rng.random((len(running), len(nvec))) < epsilons[running, None]
            if not self._has_policy():
                explore[:] = True
            random_actions = self._rng.integers(nvec, size=(len(running), len(nvec)))
            greedy = self.algo.predict(observations)
            actions[running] = np.where(explore, random_actions, greedy[running])
            explorers.act(actions)
            following, rewards, terminated, truncated, _ = self._envs.step(actions)
            fallen = self._falls.notice(rewards, over | terminated | truncated)
            self._envs.end_episodes(fallen)
            terminated |= fallen
            for i in running.tolist():
                self._replay.append(
                    i,
                    observations[i],
                    actions[i],
                    float(rewards[i]),
                    following[i],
                    bool(terminated[i]),
                    bool(truncated[i]),
                )
            observations, over = following, terminated | truncated
            before = self.env_steps
            self.env_steps += len(running)
            bar.update(len(running))
            if before // SCALER_INTERVAL != self.env_steps // SCALER_INTERVAL:
                self.algo.config.observation_scaler = self._moments.scaler()
            if self.env_steps >= fill_until:
                owed += len(running) / recipe.steps_per_update
                while owed >= 1.0:
                    self.algo.update(self._replay.sample(self.algo.batch_size))
                    owed -= 1.0
            interval = recipe.evaluation_interval
            if before // interval != self.env_steps // interval:
                self.seconds = time.monotonic() - started
                bar.set_postfix_str(f"return {self._evaluate():.0f}")
                self._save()
        bar.close()

    def _evaluate(self) -> float:
        arrays = policy_arrays(self.algo, self.recipe.averaged)
        returns = evaluate_policy(
            BehaviorPolicy(arrays, {}), self.recipe, EVALUATION_EPISODES, EVALUATION_SEED
        )
        snapshot = self.folder / "snapshots" / f"{self.env_steps}.npz"
        np.savez_compressed(snapshot, allow_pickle=False, **arrays)
        row = [self.env_steps, returns.mean(), returns.std(), self.seconds]
        with (self.folder / "curve.csv").open("a", newline="") as f:
            writer = csv.writer(f)
            if f.tell() == 0:
                writer.writerow(["env_steps", "mean_return", "std_return", "seconds"])
            writer.writerow([f"{v:.6g}" for v in row])
        return float(returns.mean())

    def _save(self) -> None:
        state = {
            "modules": {k: v.state_dict() for k, v in self._modules().items()},
            "moments": (
                self._moments.count,
                torch.from_numpy(self._moments.mean),
                torch.from_numpy(self._moments.m2),
            ),
            "env_steps": self.env_steps,
            "grad_step": self.algo.grad_step,
            "seconds": self.seconds,
        }
        with written_whole(self.folder / "checkpoint.pt") as partial:
            torch.save(state, partial)

    def _resume(self) -> None:
        state = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        for name, module in self._modules().items():
            module.load_state_dict(state["modules"][name])
        self._moments.count, mean, m2 = state["moments"]
        self._moments.mean, self._moments.m2 = mean.numpy(), m2.numpy()
        self.algo.config.observation_scaler = self._moments.scaler()
        self.algo.set_grad_step(state["grad_step"])
        self.env_steps, self.seconds = state["env_steps"], state["seconds"]
        # Other episodes and exploration than the first part's.
        self._rng = np.random.default_rng([self.recipe.seed, self.env_steps])

    def _begin_with(self, policy: BehaviorPolicy) -> None:
        """Takes over a policy's networks and its observations' moments."""
        arrays, env_steps = policy.arrays, policy.record["env_steps"]
        load_policy_arrays(self.algo, transferred(arrays, self._nvec, self.recipe.initial_scale))
        self._moments.count, self._moments.mean = float(env_steps), arrays["mean"].copy()
        std = arrays["std"] - self._moments.scaler().eps  # which policies add once, too
        self._moments.m2 = std**2 * env_steps
        self.algo.config.observation_scaler = self._moments.scaler()

    def _has_policy(self) -> bool:
        """Whether there is something better to act by than chance."""
        return self.recipe.initial is not None or self.algo.grad_step > 0

    def _initial_policy(self, name: str) -> BehaviorPolicy:
        if name in shipped_policies():
            return load_behavior_policy(name)
        arrays = self.folder.parent / name / f"{name}.npz"
        if not arrays.exists():
            raise FileNotFoundError(
                f"Expected {arrays}, with which {self.recipe.name} begins. Train and select it "
                "first."
            )
        return BehaviorPolicy.from_files(arrays, arrays.with_suffix(".json"))

    def _modules(self) -> dict[str, Any]:
        assert self.algo.impl is not None
        return dict(self.algo.impl._checkpointer.modules)


def evaluate_policy(
    policy: BehaviorPolicy, recipe: Recipe, episodes: int, seed: int
) -> NDArray[np.float64]:
    """Returns the undiscounted returns of greedy episodes with seeds `seed ...`."""
    seeds = range(seed, seed + episodes)
    task = recipe.benchmark_task
    with closing(make_batch(task.env_id, min(20, episodes), **task.env_kwargs)) as envs:
        return np.array(
            [e.rewards.sum() for e in rollout(envs, lambda o, _: policy(o), seeds, record=False)]
        )


def select_policy(recipe: Recipe, folder: Path, destination: Path) -> Path:
    """Writes the snapshot whose mean return is closest to the recipe's target.

    The three nearest by the training curve are measured again over 100 episodes.

    Args:
        recipe: what was trained.
        folder: the trainer's folder.
        destination: where `<name>.npz` (arrays), `<name>.json` (scores, versions, command) and
            `<name>.csv` (learning curve until the snapshot) go.

    Returns:
        The path of the arrays.
    """
    with (folder / "curve.csv").open() as f:
        curve = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(f)]
    candidates = []
    for row in sorted(curve, key=lambda row: abs(row["mean_return"] - recipe.target))[:3]:
        path = folder / "snapshots" / f"{int(row['env_steps'])}.npz"
        with np.load(path, allow_pickle=False) as data:
            policy = BehaviorPolicy(dict(data), {})
        returns = evaluate_policy(policy, recipe, RECORD_EPISODES, EVALUATION_SEED)
        candidates.append((abs(returns.mean() - recipe.target), path, row, returns))
    _, path, row, returns = min(candidates, key=lambda candidate: candidate[0])
    record = {
        "task": recipe.task,
        **recipe.benchmark_task.env_kwargs,
        "level": recipe.level,
        "target_return": recipe.target,
        "episodes": RECORD_EPISODES,
        "first_seed": EVALUATION_SEED,
        "mean_return": round(float(returns.mean()), 2),
        "std_return": round(float(returns.std()), 2),
        "min_return": round(float(returns.min()), 2),
        "max_return": round(float(returns.max()), 2),
        "algorithm": "DecQN",
        "env_steps": int(row["env_steps"]),
        "training_seconds": round(row["seconds"]),
        "command": (
            f"spin-d3rlpy behaviour train {recipe.benchmark_task.name} --level {recipe.level}"
        ),
        "versions": {
            "spin-d3rlpy": __version__,
            **{
                p: importlib.metadata.version(p)
                for p in ("torch", "d3rlpy", "gymnasium", "mujoco", "dm_control", "numpy")
            },
        },
    }
    arrays = destination / f"{recipe.name}.npz"
    arrays.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    columns = ("env_steps", "mean_return", "std_return")
    until = [r for r in curve if r["env_steps"] <= row["env_steps"]]
    write_csv(arrays.with_suffix(".csv"), [{c: f"{r[c]:.6g}" for c in columns} for r in until])
    with written_whole(arrays) as partial:  # the last one: who finds it finds the others
        partial.write_bytes(path.read_bytes())
    return arrays
