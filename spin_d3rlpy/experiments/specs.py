"""Building blocks of experiments: scales, methods and the jobs of cells."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from spin_d3rlpy.experiments.jobs import Job
from spin_envs.tasks import BenchmarkTask

Fields = dict[str, Any]
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


@dataclasses.dataclass(frozen=True)
class Scale:
    """Size of experiments; the defaults are as published.

    Mappings hold fields of the configurations of their names.

    Args:
        common: fields of every algorithm.
        n_steps: gradient steps of full-length trainings.
        n_early_steps: gradient steps of early adaptation.
        n_evaluations: of a full-length training.
        n_early_evaluations: of early adaptation.
        episodes: per evaluation.
        size: transitions of datasets; the published sizes if None.
        level: of datasets, instead of the experiments' own if not None.
        seeds: default number of seeds.
        asm_epochs: epochs of pre-training after which ASMs are compared; None is the last one.
        seconds: CPU time per training in experiments with equal seconds.
        maze_seconds: the same in the maze.
        coordination_seconds: the same in dispatch and slate.
        timed_episodes: per evaluation of such a training.
    """

    transformer: Fields = dataclasses.field(default_factory=dict)
    pretraining: Fields = dataclasses.field(default_factory=dict)
    common: Fields = dataclasses.field(default_factory=dict)
    n_steps: int = 1_000_000
    n_early_steps: int = 10_000
    n_evaluations: int = 200
    n_early_evaluations: int = 10
    episodes: int = 10
    size: int | None = None
    level: str | None = None
    seeds: int = 5
    probe: Fields = dataclasses.field(default_factory=dict)
    distillation: Fields = dataclasses.field(default_factory=dict)
    reprem: Fields = dataclasses.field(default_factory=dict)
    reprem_pretraining: Fields = dataclasses.field(default_factory=dict)
    seconds: float = 600.0
    maze_seconds: float = 150.0
    coordination_seconds: float = 60.0
    timed_episodes: int = 20
    asm_epochs: Sequence[int | None] = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, None)

    def seconds_of(self, dataset: str) -> float:
        """Returns the CPU time of a training on a dataset."""
        task = BenchmarkTask.parse(dataset.split("/")[1])
        if task.is_scripted:
            return self.coordination_seconds
        return self.maze_seconds if task.task == "maze" else self.seconds


SCALES: dict[str, Scale] = {
    # ALGORITHMS' and configs' defaults: a GPU, or weeks.
    "paper": Scale(),
    # The published structure at a quarter of the width and, of one seed, an hour for one task's
    # early adaptation on two cores.
    "cpu": Scale(
        transformer={"width": 64, "n_blocks": 2, "head_hidden": 64, **NO_DROPOUT},
        pretraining={
            "max_updates": 5_000,
            "precision": "auto",
            "checkpoint_interval": 1,
            "validation_share": 0.05,
        },
        common={"precision": "auto"},
        n_steps=20_000,
        n_evaluations=10,
        seeds=1,
        probe={"n_updates": 1_000},
        distillation={"n_updates": 5_000},
        reprem={"width": 64, "n_blocks": 2, "head_hidden": 64, "dropout": 0.0},
        reprem_pretraining={"max_updates": 5_000, "precision": "auto"},
        asm_epochs=(0, 1, 2, None),
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
        asm_epochs=(0, None),
        seconds=1.0,
        maze_seconds=1.0,
        coordination_seconds=1.0,
        timed_episodes=1,
    ),
}


@dataclasses.dataclass(frozen=True)
class Method:
    """One line of a table.

    Args:
        label: as in the paper.
        algorithm: class in `spin_d3rlpy.algos`.
        fields: config fields that differ from the scale's, nested ones as dictionaries.
        pretraining: fields of `PretrainingConfig` that differ from the scale's.
        asm_epoch: epoch of the ASM; the last one if None.
        recipe: for experiments with equal seconds.
    """

    label: str
    algorithm: str
    fields: Fields = dataclasses.field(default_factory=dict)
    pretraining: Fields = dataclasses.field(default_factory=dict)
    asm_epoch: int | None = None
    recipe: str = "tuned"

    def timed_job(self, dataset: str, seed: int, scale: Scale, device: str) -> Job:
        """A training for the scale's seconds, pre-training included."""
        return Job(
            kind="train",
            dataset=dataset,
            size=scale.size,
            seed=seed,
            device=device,
            algorithm=self.algorithm,
            fields=self.fields,
            episodes=scale.timed_episodes,
            recipe=self.recipe,
            # A float, however it was written: it is part of the job's name.
            seconds=float(scale.seconds_of(dataset)),
        )

    def job(self, dataset: str, seed: int, scale: Scale, early: bool, device: str) -> Job:
        """The training that fills one cell of the line."""
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
        n_steps = scale.n_early_steps if early else scale.n_steps
        n_evaluations = scale.n_early_evaluations if early else scale.n_evaluations
        return Job(
            kind="train",
            dataset=dataset,
            size=scale.size,
            seed=seed,
            device=device,
            algorithm=name,
            fields={**fields, **self.fields},
            n_steps=n_steps,
            n_steps_per_epoch=n_steps // n_evaluations,
            episodes=scale.episodes,
            # As published: the policies of IQL and AWAC are sampled, BCQ's act greedily.
            mode="greedy" if name.endswith("BCQ") else "sample",
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
    """One table or figure.

    Args:
        name: for the command line.
        title: what it shows.
        datasets: names, a row each.
        methods: lines.
        published: file of published figures, or "".
        early: trainings as short as those of early adaptation.
        by_epoch: each method once per epoch in the scale's `asm_epochs`.
        probe: probe the ASM after each of these epochs.
        timed: all trainings have the same seconds, pre-training included.
        note: caveats for comparing with the published figures.
    """

    name: str
    title: str
    datasets: Sequence[str]
    methods: Sequence[Method] = ()
    published: str = ""
    early: bool = False
    by_epoch: bool = False
    probe: bool = False
    timed: bool = False
    note: str = ""

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
            datasets = list(dict.fromkeys(_at_level(d, scale.level) for d in datasets))
        cells = []
        for dataset, seed in itertools.product(datasets, seeds):
            if self.timed:
                cells += [
                    (dataset, m.label, m.timed_job(dataset, seed, scale, device)) for m in methods
                ]
                continue
            cells += [
                (dataset, m.label, m.job(dataset, seed, scale, self.early, device)) for m in methods
            ]
            if self.probe:
                asm = pretraining_job(dataset, seed, scale, device)
                cells += [
                    (dataset, _epoch_label(epoch), _probe_job(asm, epoch, scale))
                    for epoch in scale.asm_epochs
                ]
        return cells


def _epoch_label(epoch: int | None) -> str:
    return "last epoch" if epoch is None else f"epoch {epoch}"


def _probe_job(asm: Job, epoch: int | None, scale: Scale) -> Job:
    return dataclasses.replace(
        asm, kind="probe", fields={"probe": scale.probe}, asm=asm, asm_epoch=epoch
    )


def _at_level(dataset: str, level: str) -> str:
    return f"{dataset.rpartition('/')[0]}/{level}-v0"


def get_scale(name: str) -> Scale:
    """Returns a scale by name.

    Raises:
        ValueError: there is no such scale.
    """
    if name not in SCALES:
        raise ValueError(f"Expected a preset of {', '.join(SCALES)}; got {name!r}.")
    return SCALES[name]
