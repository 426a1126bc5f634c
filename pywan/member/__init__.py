"""A member: its cache, the process it runs in, management, rows of clients."""
