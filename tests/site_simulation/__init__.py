"""A site of several members in one process, with simulated clocks and connections, in which the product runs: the
coordinator, the agents, the copies with their tails and lanes, and the calls. No thread, no socket, no sleep."""
