"""Building blocks of experiments: scales, methods and the jobs of cells."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from examples.paper.job import Job
from spin_envs.tasks import BenchmarkTask

Fields = dict[str, Any]
LINEAR = "linear"  # the critic of `examples.paper.linear`
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
# Pre-training for a job's seconds, in which all trajectories are alike.
REWARD_FREE: Fields = {
    "pretraining": {"budget_share": 1.0},
    "trajectory_weights": {"temperature": None},
}
# Heads of such a model have further to go than those of the recipe, whose model was pre-trained by
# weighted trajectories.
REWARDS_COME_LATER: Fields = {"actor_learning_rate": 2e-3}
_CPU: Fields = {"max_updates": 5_000, "precision": "auto"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """Size of experiments; the defaults are as published."""

    # Fields of the configurations of these names; `common` are of every algorithm.
    transformer: Fields = dataclasses.field(default_factory=dict)
    pretraining: Fields = dataclasses.field(default_factory=dict)
    common: Fields = dataclasses.field(default_factory=dict)
    n_steps: int = 1_000_000  # gradient steps of full-length trainings
    n_early_steps: int = 10_000  # gradient steps of early adaptation
    n_evaluations: int = 200
    n_early_evaluations: int = 10
    episodes: int = 10  # per evaluation
    size: int | None = None  # transitions of datasets; the published sizes if None
    level: str | None = None  # of datasets, instead of the experiments' own if not None
    seeds: int = 5
    probe: Fields = dataclasses.field(default_factory=dict)
    distillation: Fields = dataclasses.field(default_factory=dict)
    reprem: Fields = dataclasses.field(default_factory=dict)
    reprem_pretraining: Fields = dataclasses.field(default_factory=dict)
    # CPU time per training in experiments with equal seconds.
    seconds: float = 600.0
    maze_seconds: float = 150.0
    coordination_seconds: float = 60.0  # in dispatch and slate
    cone_seconds: float = 40.0
    brave_steps: int = 20_000  # gradient steps of BraVE, whose source says how many
    brave_evaluations: int = 20
    timed_episodes: int = 20  # per evaluation of such a training
    final_episodes: int = 0  # of one more at its end, whose returns count; none if 0
    # Of the seconds: "ops" counts work, so that rows of different machines compare.
    clock: Literal["cpu", "ops"] = "cpu"
    # Of the seconds, for a model that a job of its own pre-trains; SPIN's of the tuned recipe.
    pretraining_share: float = 0.85
    # Epochs of pre-training after which ASMs are compared; None is the last one.
    asm_epochs: list[int | None] = dataclasses.field(
        default_factory=lambda: [*range(0, 91, 10), None]
    )

    def seconds_of(self, dataset: str) -> float:
        task = BenchmarkTask.parse(dataset.split("/")[1])
        if task.needs_coordination:
            return self.coordination_seconds
        if task.task == "cone":
            return self.cone_seconds
        return self.maze_seconds if task.task == "maze" else self.seconds


SCALES: dict[str, Scale] = {
    # The defaults of algorithms and configs: a GPU, or weeks.
    "paper": Scale(),
    # The published structure at a quarter of the width and, of one seed, an hour for one task's
    # early adaptation on two cores.
    "cpu": Scale(
        transformer={"width": 64, "n_blocks": 2, "head_hidden": 64, **NO_DROPOUT},
        pretraining=_CPU | {"checkpoint_interval": 1, "validation_share": 0.05},
        common={"precision": "auto"},
        n_steps=20_000,
        n_evaluations=10,
        seeds=1,
        probe={"n_updates": 1_000},
        distillation={"n_updates": 5_000},
        reprem={"width": 64, "n_blocks": 2, "head_hidden": 64, "dropout": 0.0},
        reprem_pretraining=_CPU,
        asm_epochs=[0, 1, 2, None],
    ),
    # Minutes for everything: shows that it runs, and nothing else. Random actions need no behavior
    # policy, which not every task has.
    "smoke": Scale(
        transformer={"width": 8, "n_blocks": 1, "n_heads": 2, "head_hidden": 8},
        pretraining={"max_updates": 4, "batch_size": 32},
        common={"batch_size": 16},
        n_steps=6,
        n_early_steps=4,
        n_evaluations=1,
        n_early_evaluations=1,
        episodes=1,
        size=4_000,
        level="random",
        seeds=1,
        probe={"n_updates": 5, "batch_size": 64, "test_rows": 128},
        distillation={"n_updates": 4, "batch_size": 32},
        reprem={"width": 8, "n_blocks": 1, "n_heads": 2, "window": 3, "head_hidden": 8},
        reprem_pretraining={"max_updates": 4, "batch_size": 16},
        asm_epochs=[0, None],
        seconds=1.0,
        maze_seconds=1.0,
        coordination_seconds=1.0,
        cone_seconds=1.0,
        brave_steps=4,
        brave_evaluations=1,
        timed_episodes=1,
    ),
}


@dataclasses.dataclass(frozen=True)
class Method:
    """One line of a table."""

    label: str  # as in the paper
    algorithm: str  # class in `spin_d3rlpy.algos`, or LINEAR
    fields: Fields = dataclasses.field(default_factory=dict)  # that differ from the scale's
    pretraining: Fields = dataclasses.field(default_factory=dict)  # that differ from the scale's
    asm_epoch: int | None = None  # epoch of the ASM; the last one if None
    recipe: str = "tuned"  # for experiments with equal seconds
    # Of those: what a job trains on, see `Job`, and whether SPIN's model is pre-trained before, on
    # all episodes, without rewards: in the same seconds, or not counted because others use it, too.
    labeled: float = 1.0
    reward: str | None = None
    pretrained: Literal["counted", "free"] | None = None
    only: str = ""  # part of datasets' names, of those that the method is for

    def timed_job(self, dataset: str, seed: int, scale: Scale, device: str) -> Job:
        """A training for the scale's seconds, pre-training included unless that is free."""
        # A float, however it was written: it is part of the job's name.
        seconds = float(scale.seconds_of(dataset))
        asm, before = None, round(scale.pretraining_share * seconds, 3)
        fields = self.fields
        if self.pretrained is not None:
            fields = {**REWARDS_COME_LATER, **fields}
            asm = Job(
                "pretrain",
                dataset,
                scale.size,
                seed,
                device,
                fields=REWARD_FREE,
                recipe=self.recipe,
                seconds=before,
                clock=scale.clock,
            )
        job = Job("train", dataset, scale.size, seed, device, self.algorithm, fields)
        return dataclasses.replace(
            job,
            episodes=scale.timed_episodes,
            final_episodes=scale.final_episodes,
            recipe=self.recipe,
            seconds=seconds,
            clock=scale.clock,
            spent=before if self.pretrained == "counted" else 0.0,
            labeled=self.labeled,
            reward=self.reward,
            asm=asm,
        )

    def job(self, dataset: str, seed: int, scale: Scale, early: bool, device: str) -> Job:
        """The training that fills one cell of the line."""
        if self.algorithm == LINEAR:
            return Job("linear", dataset, scale.size, seed, device, episodes=scale.episodes)
        name, asm = self.algorithm, None
        fields: Fields = {**scale.common}
        if name.startswith(("SPIN", "SAINT")):
            fields["transformer"] = scale.transformer
        if name.startswith("SPIN"):
            asm = pretraining_job(dataset, seed, scale, device, self.pretraining)
        if name.startswith("SPINDistill"):
            fields["distillation"] = scale.distillation
        if name.startswith("RePreM"):
            fields["sizes"] = scale.reprem
            fields["pretraining"] = scale.reprem_pretraining
        n_steps, n_evaluations = scale.n_steps, scale.n_evaluations
        if early:
            n_steps, n_evaluations = scale.n_early_steps, scale.n_early_evaluations
        if name == "BraVE":
            n_steps, n_evaluations = scale.brave_steps, scale.brave_evaluations
        job = Job("train", dataset, scale.size, seed, device, name, {**fields, **self.fields})
        return dataclasses.replace(
            job,
            n_steps=n_steps,
            n_steps_per_epoch=n_steps // n_evaluations,
            episodes=scale.episodes,
            # As published: the policies of IQL and AWAC are sampled, others act greedily.
            mode="greedy" if name.endswith(("BCQ", "BraVE")) else "sample",
            asm=asm,
            asm_epoch=self.asm_epoch,
        )


def pretraining_job(
    dataset: str, seed: int, scale: Scale, device: str, changes: Mapping[str, Any] | None = None
) -> Job:
    """The pre-training that SPIN's trainings on a dataset share."""
    pretraining = {**scale.pretraining, **(changes or {})}
    fields = {"transformer": scale.transformer, "pretraining": pretraining}
    return Job("pretrain", dataset, scale.size, seed, device, fields=fields)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str  # for the command line
    title: str
    datasets: Sequence[str]  # names, a row each
    methods: Sequence[Method] = ()
    published: str = ""  # file of published figures
    early: bool = False  # trainings as short as those of early adaptation
    by_epoch: bool = False  # each method once per epoch in the scale's `asm_epochs`
    probe: bool = False  # probe the ASM after each of these epochs
    timed: bool = False  # all trainings have the same seconds, pre-training included
    placements: bool = False  # a seed is also the placement of CoNE's pits and its data's seed
    note: str = ""  # caveats for comparing with the published figures

    def jobs(
        self, scale: Scale, seeds: Sequence[int], device: str, tasks: Sequence[str] = ()
    ) -> list[tuple[str, str, Job]]:
        """Returns cells as (dataset, label, job); `tasks` are parts of datasets' names."""
        methods = list(self.methods)
        if self.by_epoch:
            methods = [
                dataclasses.replace(m, label=_epoch_label(epoch), asm_epoch=epoch)
                for m in methods
                for epoch in scale.asm_epochs
            ]
        datasets = [d for d in self.datasets if not tasks or any(task in d for task in tasks)]
        if scale.level is not None:
            folders = dict.fromkeys(dataset.rpartition("/")[0] for dataset in datasets)
            datasets = [f"{folder}/{scale.level}-v0" for folder in folders]
        cells = []
        for dataset, seed in itertools.product(datasets, seeds):
            name = placed(dataset, seed) if self.placements else dataset
            for m in (m for m in methods if m.only in dataset):
                job = m.job(name, seed, scale, self.early, device)
                if self.timed:
                    job = m.timed_job(name, seed, scale, device)
                cells.append((dataset, m.label, job))
            if self.probe:
                asm = pretraining_job(dataset, seed, scale, device)
                fields = {"probe": scale.probe}
                for epoch in scale.asm_epochs:
                    job = dataclasses.replace(
                        asm, kind="probe", fields=fields, asm=asm, asm_epoch=epoch
                    )
                    cells.append((dataset, _epoch_label(epoch), job))
        return cells


def placed(dataset: str, placement: int) -> str:
    """Returns the name of a dataset of CoNE with another placement of the pits."""
    domain, task, level = dataset.split("/")
    return f"{domain}/{task}-s{placement}/{level}" if placement else dataset


def _epoch_label(epoch: int | None) -> str:
    return "last epoch" if epoch is None else f"epoch {epoch}"
