"""One trainer: lease, pull, compute, push, report."""
