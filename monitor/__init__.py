"""Watches the loss stream: terminal, log, plot."""
