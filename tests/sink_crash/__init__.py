"""The crash campaign of a table behind a queue: the member and the database are killed with SIGKILL in turns."""
