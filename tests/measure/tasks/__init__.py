"""Tasks on which the switch between search and imitation is measured, each with a log of its own.

Which of them a rule was designed on, and which were written as a test:
`docs/explanation/trust.md`.
"""

from tests.measure.tasks import (
    agents,
    energy,
    libraries,
    motion,
    nature,
    operations,
    people,
    planning,
    single_decisions,
)
from tests.measure.tasks.base import Task, logged, returns

__all__ = ["TASKS", "Task", "logged", "returns"]

TASKS = operations.TASKS | agents.TASKS | motion.TASKS | energy.TASKS | nature.TASKS
TASKS |= people.TASKS | single_decisions.TASKS | libraries.TASKS
TASKS |= planning.TASKS
