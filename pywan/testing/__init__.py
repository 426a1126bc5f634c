"""Tools that make a network misbehave on purpose. For tests and demonstrations."""
