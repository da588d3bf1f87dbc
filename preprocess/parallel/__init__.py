"""Spread work over processes: pools, scratch folder, progress, disk space."""
