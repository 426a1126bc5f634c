"""A member: its cache, its process, its management commands, and the rows that clients send to it."""
