"""What the logs of queues and of regions share: their committers, and what is on its way into one."""
