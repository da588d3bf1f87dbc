"""Read text: sources, formats, compression, and blocks of work."""
