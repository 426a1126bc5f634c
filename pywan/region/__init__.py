"""A region: what users see of it, the route of its changes through user code, and the locks on that route."""
