"""Owns the names of what a simulated site has only if it is asked for."""

# What a world has only if it is asked for: the product does not keep its promises there yet.
# Changes of which an attempt was made when their bucket was lost and began anew. The new life remembers nothing of
# them, and makes them again.
REPEATS_OVER_LIVES = "repeats-over-lives"
# The coordinator's file is lost where regions are colocated: some of their buckets never get their copies again.
LOST_FILES_OF_COLOCATED = "lost-files-of-colocated"
EXTRAS = (REPEATS_OVER_LIVES, LOST_FILES_OF_COLOCATED)
