"""A site of several members in real processes, with clients whose histories are checked."""
