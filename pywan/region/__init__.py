"""A region: the mapping for users, the path of changes through user code, and the locks on the path."""
