"""Turn a corpus into a dataset: vocabulary and co-occurrence matrix.

As a function, `glovewire.preprocess(corpus, out)` is `glovewire.api.corpora.preprocess`.
"""
