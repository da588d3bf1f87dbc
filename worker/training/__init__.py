"""The training loops: blocks, minibatches, prefetch."""
