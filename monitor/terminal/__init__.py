"""Show a run in a terminal."""
