"""Owns which threads of a test's process count."""

import threading


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith("pywan-resolve")}
