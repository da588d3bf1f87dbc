"""Read text: sources, file formats, compression, and input splits."""
