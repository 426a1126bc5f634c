"""The member package: the cache, the member's process, management commands, and the rows of clients."""
