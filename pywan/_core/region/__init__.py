"""A region: its table, its log, and the step in which a change enters table, log, change log and queues."""
