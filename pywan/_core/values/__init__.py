"""Python objects and columns as bytes, and back."""
