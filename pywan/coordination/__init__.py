"""Owns who is primary of what in a site of several members: the coordinator, without sockets, threads or clocks."""
