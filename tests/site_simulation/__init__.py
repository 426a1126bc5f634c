"""A site of several members in one process, with simulated clocks and connections, in which the product runs: the
coordinator, the agents, the replicas with their change logs and replication links, and the calls. No thread, no socket,
no sleep."""
