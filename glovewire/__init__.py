"""Glovewire: a parameter server over ZeroMQ that trains word vectors and dense models."""
