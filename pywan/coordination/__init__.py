"""Decides which member is primary of which bucket in a site: the coordinator, without sockets, threads or clocks."""
