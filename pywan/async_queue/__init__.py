"""Asynchronous event queues: the machinery of senders, whose batches a listener in the member gets."""
