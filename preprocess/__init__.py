"""From raw text to a dataset: tokens, vocabulary, co-occurrence counts."""
