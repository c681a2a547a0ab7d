from __future__ import annotations

import pytest

from examples.behavior_policies import selection, trainer


@pytest.fixture(autouse=True)
def _few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "EVALUATION_EPISODES", 2)
    monkeypatch.setattr(selection, "RECORD_EPISODES", 3)
