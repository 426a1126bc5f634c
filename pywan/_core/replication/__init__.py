"""Both ends of a connection between members: changes and snapshots of buckets."""
