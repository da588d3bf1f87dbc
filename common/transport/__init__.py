"""Sockets, CURVE keys, ZAP, channels and the clients for requests and queries."""
