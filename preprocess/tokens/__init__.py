"""Turn text into word numbers."""
