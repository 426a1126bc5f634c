"""Copies of buckets at a member: they follow, learn, take over and lead, as the coordinator's tables say."""
