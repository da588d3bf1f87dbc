"""Implement what `import glovewire` offers besides vectors: datasets, trainings, and servers for dense models."""
