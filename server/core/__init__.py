"""Decide without I/O: requests in, effects out."""
