"""Measure the wire, training, preprocessing and dense models on this machine."""
