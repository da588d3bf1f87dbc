"""The `glovewire` program and its commands."""
