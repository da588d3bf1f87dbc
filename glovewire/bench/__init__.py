"""Measure pulls and pushes, training, preprocessing and dense models on this machine."""
