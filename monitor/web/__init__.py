"""Show a run in a browser: `server` serves `page`, which reads a RunHistory into `charts` and `panels`."""
