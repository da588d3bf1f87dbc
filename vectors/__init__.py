"""Uses trained vectors: neighbours, evaluation, export."""
