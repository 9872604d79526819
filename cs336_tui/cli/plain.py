"""A table as text for a terminal."""

from __future__ import annotations

from cs336_tui.export.tables import Table
from cs336_tui.export.texts import one_line


def plain(table: Table) -> str:
    """The table in aligned columns; a column in which all rows say the same is said once, above them."""
    from tabulate import tabulate

    headers = [column.header for column in table.columns]
    several = len(table.rows) > 1
    shared = [i for i, cells in enumerate(zip(*table.rows, strict=True)) if several and i and len(set(cells)) == 1]
    kept = [i for i in range(len(headers)) if i not in shared]
    said = ", ".join(f"{headers[i]} {table.rows[0][i]}" for i in shared)
    lines = tabulate(
        [[one_line(row[i]) for i in kept] for row in table.rows],
        [one_line(headers[i]) for i in kept],
        tablefmt="simple",
        disable_numparse=True,
        colalign=[table.columns[i].align for i in kept],
    )
    return "\n".join([table.caption, *([f"all: {said}"] if said else []), "", lines, "", *table.footnotes, ""])
