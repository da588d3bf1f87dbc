"""Starts everything: the glovewire program and the processes of a run."""
