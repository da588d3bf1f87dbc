"""Count words and co-occurrences, and write the dataset."""
