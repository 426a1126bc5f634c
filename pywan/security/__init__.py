"""Who speaks, and what they may do."""
