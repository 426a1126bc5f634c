"""Bytes of a connection: buffers, frames, the one loop around a session, compression."""
