from __future__ import annotations

import pytest
import torch

from spin_d3rlpy.asm.distillation import DistillationConfig, Student, distill
from spin_d3rlpy.training.loop import Run


class States:
    transition_count = 1000

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(batch_size, 3), torch.zeros(batch_size, 2, dtype=torch.long)


def teacher(observations: torch.Tensor) -> torch.Tensor:
    """Two slots of four features, none of them constant."""
    return torch.stack([torch.sin(observations @ torch.ones(3, 4)), observations @ W], 1)


W = torch.arange(12.0).reshape(3, 4) / 12
CONFIG = DistillationConfig(
    n_updates=400, batch_size=128, learning_rate=3e-3, validation_interval=150
)


def test_a_student_learns_its_teacher_and_the_error_is_measured_on_held_out_states() -> None:
    torch.manual_seed(0)
    student = Student(3, n_slots=2, width=4, hidden_units=[64, 64])
    records = distill(student, teacher, States(), States(), CONFIG, Run(show_progress=False))
    assert [r["step"] for r in records] == [150, 300, 400]
    assert records[-1]["unexplained"] < 0.05 < records[0]["unexplained"] * 10
    torch.manual_seed(0)  # the same held-out rows each time
    x = torch.randn(4096, 3)
    with torch.no_grad():
        target = teacher(x)
        mse = (student(x) - target).square().mean().item()
    assert records[-1]["mse"] == pytest.approx(mse, rel=1e-5)
    variance = target.var(0, correction=0).mean().item()
    assert records[-1]["unexplained"] == pytest.approx(mse / variance, rel=1e-4)


def test_observations_are_scaled_for_both() -> None:
    torch.manual_seed(0)
    seen = []

    def recording(observations: torch.Tensor) -> torch.Tensor:
        seen.append(float(observations.mean()))
        return teacher(observations)

    student = Student(3, 2, 4, [8])
    config = DistillationConfig(n_updates=2, batch_size=512)
    distill(
        student, recording, States(), States(), config, Run(show_progress=False), lambda x: x + 5.0
    )
    assert seen
    assert all(4.5 < mean < 5.5 for mean in seen)


def test_held_out_rows_need_held_out_data() -> None:
    with pytest.raises(ValueError, match="validation_share"):
        DistillationConfig(validation_share=0.0)
