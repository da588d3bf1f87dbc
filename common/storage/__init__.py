"""Files on disk: artifacts with manifests, datasets, run folders."""
