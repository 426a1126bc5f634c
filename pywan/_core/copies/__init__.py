"""Both ends of a connection between members: changes and images of buckets."""
