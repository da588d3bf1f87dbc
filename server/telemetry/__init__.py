"""The PUB stream, its history for late subscribers, status, and metrics.jsonl."""
