"""Watch a run: receive its stream of samples, show it in a terminal or browser, and write it to files and metrics."""
