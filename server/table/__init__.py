"""Rows in memory, compiled kernels, optimizers, and counts of hot rows."""
