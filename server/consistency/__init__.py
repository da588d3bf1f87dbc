"""When a pull may be answered and a push applied: blocks, minibatches, staleness policies."""
