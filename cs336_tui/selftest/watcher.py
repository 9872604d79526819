"""Ends process groups when the process that began them is gone: a script without this package. Reads their ids from
standard input, a line each, to its end. Then kills them, stopped processes too, and removes a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

PATIENCE_S = 1.0
"""Seconds to wait for killed processes before the folder is removed."""


def main(folder: str) -> None:
    """Wait for the end of standard input, then kill the groups and remove the folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = [int(line) for line in sys.stdin]
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    give_up_at = time.monotonic() + PATIENCE_S
    for group in groups:
        with contextlib.suppress(OSError):  # which says that none of it is left
            while time.monotonic() < give_up_at:
                os.killpg(group, 0)
                time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
