"""Receive the stream: subscription, reassembly per publisher, requests for missed samples."""
