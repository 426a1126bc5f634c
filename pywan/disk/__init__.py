"""Disk stores: who may open one, where the logs in it stand, and what can be saved of a damaged one."""
