"""Show a run in a browser: `server` serves a `page`, and the page shows a RunHistory in `charts` and `panels`."""
