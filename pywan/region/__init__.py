"""A region: what users see of it, the path of its changes through user code, and the locks on that path."""
