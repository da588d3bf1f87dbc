"""Show runs in a browser."""
