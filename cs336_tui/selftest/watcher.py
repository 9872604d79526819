"""Ends process groups when whoever began them is gone. Run as a script of its own, without this package.

Reads process group ids from standard input, a line each, until its other end closes, however that came about. Then it
kills the groups, stopped processes too, and removes the folder that it was given.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

PATIENCE_S = 1.0
"""How long killed processes may take to be gone before the folder is removed under them."""


def main(folder: str) -> None:
    """Wait for the end of standard input, then clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = [int(line) for line in sys.stdin]
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    give_up_at = time.monotonic() + PATIENCE_S
    while any(map(_exists, groups)) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
