"""Sans-IO protocol logic: bytes, messages and `now` in; bytes and actions out. Never sockets, threads or clocks."""
