"""Keep what was received: curves, states of workers and shards, recorded files."""
