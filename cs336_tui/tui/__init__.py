"""The screen. Textual is imported here only, and first of all without what the first frame does not need."""

from cs336_tui.tui.lean_textual import import_lean

import_lean()
