"""Sockets and the threads around them: the thin layer between protocol logic and the network."""
