"""Log trainings to MLflow by an adapter for d3rlpy; needs `pip install mlflow`.

Run with `python examples/track_with_mlflow.py`, then
`mlflow ui --backend-store-uri sqlite:///mlflow.db`.
"""

import argparse
from typing import Any

from d3rlpy.logging import LoggerAdapterFactory, NoopAdapter
from mlflow import MlflowClient

from spin_d3rlpy import SPIN, SPINIQL, PretrainingConfig, TransformerConfig, load_dataset
from spin_d3rlpy.files.results import format_table

LONGEST = 500  # characters of a parameter's value


class MLflowAdapter(NoopAdapter):
    """A run of MLflow. It names its run in each call, so that runs can be open together."""

    def __init__(self, client: MlflowClient, experiment: str, name: str) -> None:
        known = client.get_experiment_by_name(experiment)
        found = known.experiment_id if known else client.create_experiment(experiment)
        self._client = client
        self.run_id = client.create_run(found, run_name=name).info.run_id

    def write_params(self, params: dict[str, Any]) -> None:
        for name, value in params.items():
            self._client.log_param(self.run_id, name, str(value)[:LONGEST])

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        self._client.log_metric(self.run_id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self.run_id)


class MLflowAdapterFactory(LoggerAdapterFactory):
    """Makes a run per training, and one per stage before it.

    Args:
        experiment: its name; created if missing.
        tracking_uri: a server's address, or a file of this machine.
    """

    def __init__(self, experiment: str, tracking_uri: str = "sqlite:///mlflow.db") -> None:
        self.client, self._experiment = MlflowClient(tracking_uri), experiment

    def create(self, algo: Any, experiment_name: str, n_steps_per_epoch: int) -> MLflowAdapter:
        return MLflowAdapter(self.client, self._experiment, experiment_name)


def main(size: int, pretraining_updates: int, steps: int, tracking_uri: str) -> None:
    dataset, _ = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    sizes = TransformerConfig(width=64, n_blocks=2)
    pretraining = PretrainingConfig(max_updates=pretraining_updates)
    algo = SPINIQL(policy=SPIN(sizes, pretraining))
    factory = MLflowAdapterFactory("cheetah", tracking_uri)
    algo.fit(dataset, n_steps=steps, n_steps_per_epoch=1_000, logger_adapter=factory)
    known = factory.client.get_experiment_by_name("cheetah")
    runs = factory.client.search_runs([known.experiment_id])
    print(format_table([{"run": r.info.run_name, "metrics": len(r.data.metrics)} for r in runs]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--pretraining-updates", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=5_000, help="gradient steps")
    parser.add_argument("--tracking-uri", default="sqlite:///mlflow.db")
    args = parser.parse_args()
    main(args.size, args.pretraining_updates, args.steps, args.tracking_uri)
