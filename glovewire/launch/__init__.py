"""Start, supervise and end the processes of a run."""
