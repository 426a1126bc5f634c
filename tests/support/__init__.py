"""Owns what tests of several files share: sites, members, clients, and how bytes of the wire and the disk are read."""
