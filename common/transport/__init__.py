"""Sockets, CURVE keys, ZAP, channels and the request client."""
