"""Calls between members about keys: asking, serving, and many rows at once."""
