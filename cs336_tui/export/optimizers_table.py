"""What each implementation of the optimizer takes of a training step."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Table
from cs336_tui.session.merge import Result


def optimizers_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.Layout.make`. Raises `TableError` where nothing is to be shown."""
    del results, decimals
    raise TableError("layout optimizers: nothing to show")
