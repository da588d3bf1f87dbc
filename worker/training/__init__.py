"""Run the training loops: blocks, minibatches, prefetch."""
