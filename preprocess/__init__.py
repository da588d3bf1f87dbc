"""Turn a corpus into a dataset: vocabulary and co-occurrence matrix."""
