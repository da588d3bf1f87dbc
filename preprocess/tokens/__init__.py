"""Turn text into word numbers: tokenisers, string table, encoder."""
