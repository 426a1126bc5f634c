"""Both ends of a connection to another site: sending and acknowledgement of events, and application of events."""
