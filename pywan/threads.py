"""Owns starting a thread that a member cannot do without: what the system refuses is an error in our words."""
from __future__ import annotations

import threading
from typing import Any, Callable

from pywan.errors import IllegalStateError


def start_thread(what: str, name: str, run: Callable[..., None], *args: Any) -> threading.Thread:
    """Runs `run(*args)` in a daemon thread. IllegalStateError, which names `what` needs it, if the system has no thread left."""
    thread = threading.Thread(target=run, args=args, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise IllegalStateError(
            f"{what}: the system gives this process no more threads ({error or 'no memory'}); end other processes, or raise the limit (ulimit -u), and try again") from error
    return thread
