"""A region: the table, the log, and the step in which a change enters table, log, change log and queues."""
