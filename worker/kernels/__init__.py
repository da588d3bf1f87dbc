"""Train GloVe and skip-gram in compiled loops with explicit SIMD operations."""
