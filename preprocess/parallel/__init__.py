"""Run jobs in parallel: worker processes, Ray, scratch folder, progress, disk space."""
