"""Sockets and the threads around them: the thin layer between the protocols' logic and the network."""
