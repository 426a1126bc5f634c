"""Both ends of a connection to another site: what is sent and settled, what is applied."""
