"""Watch a run: from its stream of samples to terminal, browser, files and metrics systems."""
