"""``python -m cs336_tui``."""

from cs336_tui.cli import main

main()
