"""The evidence study of docs/results/plan.md: training, measurements, tests and report."""
