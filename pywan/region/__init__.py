"""A region: what users see of it, its way through user code, and the locks on that way."""
