"""Keep what was received: loss curves, worker and shard states, recorded files."""
