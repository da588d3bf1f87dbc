"""The browser dashboard: `server` serves `page`, which reads a RunHistory into `charts` and `panels`."""
