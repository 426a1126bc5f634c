"""A site: its locators, and what a member knows of it."""
