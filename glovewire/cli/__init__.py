"""Implement the `glovewire` program and its commands."""
