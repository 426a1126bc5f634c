"""Replicas of buckets at a member: a replica follows, learns, takes over or leads, as the cluster metadata say."""
