"""The user's selection of experiments' cells: options or a YAML file."""

from __future__ import annotations

import dataclasses
from typing import Any

from spin_d3rlpy.experiments.catalog import get_experiments
from spin_d3rlpy.experiments.jobs import Job
from spin_d3rlpy.experiments.specs import Scale, get_scale
from spin_d3rlpy.settings import create, merge


@dataclasses.dataclass(frozen=True)
class BenchSettings:
    """Selection of what to run."""

    experiments: list[str]
    preset: str = "cpu"  # a scale's name
    # what differs from it, fields of `Scale`
    scale: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int | None = None  # how many; the scale's number if None
    # only datasets whose name contains one of these; all if empty
    tasks: list[str] = dataclasses.field(default_factory=list)
    # only methods whose label contains one of these; all if empty
    methods: list[str] = dataclasses.field(default_factory=list)
    device: str = "cpu:0"  # as in d3rlpy

    def complete(self) -> BenchSettings:
        """Returns the settings with the whole scale; raises ValueError for unknown names."""
        get_experiments(self.experiments)
        scale = merge(dataclasses.asdict(get_scale(self.preset)), self.scale)
        create(Scale, scale, "scale")
        seeds = scale["seeds"] if self.seeds is None else self.seeds
        return dataclasses.replace(self, scale=scale, seeds=seeds)

    @property
    def sizes(self) -> Scale:
        return dataclasses.replace(get_scale(self.preset), **self.scale)

    @property
    def seed_numbers(self) -> range:
        return range(self.seeds or self.sizes.seeds)

    @property
    def job_device(self) -> str:
        """The jobs' device; each job sees only its own GPU."""
        return "cuda:0" if self.device.startswith("cuda") else self.device

    def jobs(self) -> list[Job]:
        sizes, seeds, device = self.sizes, self.seed_numbers, self.job_device
        return [
            job
            for experiment in get_experiments(self.experiments)
            for _, label, job in experiment.jobs(sizes, seeds, device, self.tasks)
            if not self.methods or any(method in label for method in self.methods)
        ]
