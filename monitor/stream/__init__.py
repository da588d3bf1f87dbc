"""Receive the stream: subscription, reassembly per publisher, requests for what was missed."""
