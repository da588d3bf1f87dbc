"""One shard of the parameter server."""
