"""Use trained vectors: neighbours, evaluation, export, info."""
