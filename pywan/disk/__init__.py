"""Disk stores: their folders and locks, and the salvage of damaged ones."""
