"""A plain model of a site of several members, in simulated time: the real coordinator, and members that follow the
protocol of decision 0056 in the plainest way. It shows that the protocol keeps its promises before it is compiled."""
