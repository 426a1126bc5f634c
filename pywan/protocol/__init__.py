"""The logic of the protocols without input or output: bytes, messages and `now` come in, and bytes and actions go out.
There are no sockets, threads or clocks."""
