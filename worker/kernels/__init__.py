"""Compiled loops of GloVe and skip-gram, and their SIMD operations."""
