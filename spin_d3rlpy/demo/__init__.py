"""The demonstration, `spin-d3rlpy demo`: two policies side by side, in minutes on a CPU."""

from spin_d3rlpy.demo.run import ALGORITHMS, TASKS, run_demo

__all__ = ["ALGORITHMS", "TASKS", "run_demo"]
