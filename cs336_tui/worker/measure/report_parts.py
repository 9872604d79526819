"""What the four reports have in common."""

from __future__ import annotations

from collections.abc import Callable

Enter = Callable[[str], object]
"""Called with the name of the stage that begins, between two pieces of work. May raise to stop the report."""
