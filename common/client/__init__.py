"""The client's side of the protocol, without sockets, clocks and threads."""
