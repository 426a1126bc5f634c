"""A client's rows: laid out once, staged, applied."""
