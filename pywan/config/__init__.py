"""Attributes of what a member makes, their forms in files, and a site's cluster configuration."""
