"""What crosses the wire: messages, stream samples, their schema, and frames."""
