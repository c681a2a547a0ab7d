"""What every training shares: its loop, budget, schedules, checkpoints, graphs, processes."""
