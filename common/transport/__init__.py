"""ZeroMQ: sockets, CURVE keys, ZAP, and the request client."""
