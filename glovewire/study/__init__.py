"""Compare ways to train: full trainings, tables and plots."""
