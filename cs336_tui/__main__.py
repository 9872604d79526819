"""``python -m cs336_tui``."""

import os
import sys

# Python looks in the user's folder first, where a queue.py would be taken for its own; `-P` does the same as this.
if not sys.flags.safe_path and sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH109, PTH120
    del sys.path[0]

from cs336_tui.cli.main import main

if __name__ == "__main__":
    main()
