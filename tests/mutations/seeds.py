"""Runs seeds of the simulated site in one process until a check fails, and prints a line of JSON for each seed.

It runs in a copy of the tree, with the copy's pywan.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pywan
from site_simulation.broken import Broken
from site_simulation.kinds import make_world

HELD, CHECK, ERROR = "held", "check", "error"


def run_seed(seed: int, kind: str) -> tuple[str, str]:
    """Returns what became of a seed: it held, a check failed, or there was an exception that is no check; and words."""
    try:
        make_world(seed, kind).run()
    except Broken as broken:
        return CHECK, str(broken).partition("\n")[0]
    except Exception as error:
        return ERROR, "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return HELD, ""


def main() -> None:
    first, last, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    here = Path(__file__).resolve().parent.parent.parent
    if Path(pywan.__file__).resolve().parent.parent != here:
        sys.exit(f"this is the tree {here}, and pywan is taken from {pywan.__file__}")
    logging.disable()  # What the product says of each fault is no news here.
    for seed in range(first, last + 1):
        what, words = run_seed(seed, kind)
        print(json.dumps([seed, what, words]), flush=True)
        if what == CHECK:
            return
        gc.collect()  # Tables and queues of a run are memory of which the collector does not know.


if __name__ == "__main__":
    main()
