"""``python -m cs336_tui``."""

from cs336_tui.cli import main

if __name__ == "__main__":
    main()
