"""A policy's card for the Hugging Face hub: what it is, how it was trained, what it returned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

from spin_d3rlpy._version import __version__
from spin_d3rlpy.algos.base import MultiDiscreteAlgo

LIBRARY = "spin-d3rlpy"
_TAGS = ("reinforcement-learning", "offline-rl", "multidiscrete-actions", "d3rlpy")
# Of a run's settings: where it was trained and with which budget. Fields are in the config.
_SETTINGS = ("recipe", "size", "n_steps", "seconds", "seed")
_WARNING = (
    "An estimate or a return in a simulator is no proof. Check the policy on data of your own "
    "before it decides anything."
)


def policy_card(
    algo: MultiDiscreteAlgo[Any, Any],
    repo_id: str,
    license: str | None = None,  # noqa: A002
    settings: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
) -> str:
    """Returns a policy's card, Markdown with YAML front matter.

    Args:
        algo: built.
        repo_id: where it will be, `"<user or organization>/<name>"`.
        license: identifier for the front matter, e.g. `"mit"`.
        settings: `config.yaml` of its training, if known.
        result: `result.json` of its training, if known.
    """
    settings, result = settings or {}, result or {}
    dataset = _dataset_name(settings)
    paragraphs = [
        f"---\n{_yaml(_front_matter(algo, repo_id, license, dataset, result))}---",
        f"# {repo_id}",
        _summary(algo, dataset),
        "```python\nfrom spin_d3rlpy import load_from_hub\n\n"
        f'algo = load_from_hub("{repo_id}")\n'
        "actions = algo.predict(observations)  # (B, N) for observations (B, obs)\n```",
        _returns(result),
        _training(settings),
        f"## Config\n\n```yaml\n{_yaml(_config(algo))}```",
        f"Written by {LIBRARY} {__version__}.\n",
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _front_matter(
    algo: MultiDiscreteAlgo[Any, Any],
    repo_id: str,
    license: str | None,  # noqa: A002
    dataset: str | None,
    result: Mapping[str, Any],
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "library_name": LIBRARY,
        "pipeline_tag": "reinforcement-learning",
        "tags": [*_TAGS, type(algo).__name__],
    }
    if license is not None:
        content["license"] = license
    if "return" in result:  # the hub's own format for results
        environment = result["env"]
        measured = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"type": environment, "name": dataset or environment},
            "metrics": [
                {"type": "mean_reward", "name": "mean return", "value": float(result["return"])}
            ],
        }
        content["model-index"] = [{"name": repo_id, "results": [measured]}]
    return content


def _summary(algo: MultiDiscreteAlgo[Any, Any], dataset: str | None) -> str:
    assert algo.impl is not None
    nvec, size = list(algo.config.nvec), algo.impl.observation_shape[0]
    trained = f" It was trained on the dataset `{dataset}`." if dataset else ""
    return (
        f"A policy of the algorithm `{type(algo).__name__}` after {algo.grad_step:,} gradient "
        f"steps. It maps {size} numbers to {len(nvec)} slots with {nvec} choices.{trained}"
    )


def _returns(result: Mapping[str, Any]) -> str:
    """What was measured at the end of the training; nothing if no training is known."""
    lines = []
    if "return" in result:
        played = f"{result['episodes']} episodes of `{result['env']}`, {result['mode']} actions"
        lines.append(f"- Mean return: {result['return']:.2f} ({played}).")
    if "score" in result:
        lines.append(f"- Score (0 is random, 100 expert): {result['score']:.1f}.")
    if "action_match" in result:
        share = f"{100 * result['action_match']:.0f} %"
        lines.append(f"- Logged slots that it would choose: {share}. This is no return.")
    return "\n".join(["## Results\n", *lines, "", _WARNING]) if lines else ""


def _training(settings: Mapping[str, Any]) -> str:
    known = {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
    return f"## Training\n\n```yaml\n{_yaml(known)}```" if known else ""


def _config(algo: MultiDiscreteAlgo[Any, Any]) -> dict[str, Any]:
    """The algorithm's fields; of scalers only their kind, because a table's sizes fill pages."""
    params: dict[str, Any] = algo.config.serialize_to_dict()
    for name, value in params.items():
        if name.endswith("_scaler") and isinstance(value, Mapping):
            params[name] = value.get("type")
    return params


def _dataset_name(settings: Mapping[str, Any]) -> str | None:
    """The dataset; of a path only the last part, because folders name users and machines."""
    name = settings.get("dataset")
    if name is None:
        return None
    is_path = name.startswith((".", "~")) or PurePath(name).is_absolute() or "\\" in name
    return PurePath(name.replace("\\", "/")).name if is_path else str(name)


def _yaml(content: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    return text
