"""Which block is trained next, progress, and losses."""
