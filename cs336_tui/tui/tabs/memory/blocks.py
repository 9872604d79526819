"""Memory of the Transformer blocks: what each saves for backward, and how its backward changes what is live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.events.memory_report import MemoryReport, SavedTensor
from cs336_tui.export.tables import Column
from cs336_tui.stats.quantities import NONE, ByteUnit, counted
from cs336_tui.tui import format
from cs336_tui.tui.tabs.memory.views import COLUMNS, tensor
from cs336_tui.tui.widgets.columns import TableLines, shown_table, table_lines
from cs336_tui.tui.widgets.lines import Span, bar, line, wrapped
from cs336_tui.tui.widgets.rows import Page, message

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import BlockRow, SavedRow
from collections.abc import Sequence

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.memory_report import RankMemoryReport
from cs336_tui.export.rank_memory import rank_memory_table
from cs336_tui.export.tables import Table

_EXPLAINED = (
    "expected: gradients come, saved tensors go · diff: change less expected, in bytes · live: before and after"
)


def blocks_page(report: MemoryReport, width: int, columns_page: int) -> Page:
    """The backward of each block: gradients and saved tensors, the change that follows and the recorded one."""
    from cs336_tui.analysis.memory import block_rows

    rows = block_rows(report)
    if not rows:
        return message(_nothing(report, "how blocks change memory in backward"), width)
    unit = ByteUnit.for_largest(max(max(row.gradient_bytes, row.saved_bytes or 0) for row in rows))

    def size(key: str, title: str, rank: int = 0) -> Column[BlockRow]:
        return Column(key, title, rank=rank, show=unit.fixed)

    columns: tuple[Column[BlockRow], ...] = (
        Column("module", "block", left=True),
        size("gradient_bytes", "gradients"),
        size("saved_bytes", "saved"),
        size("expected_bytes", "expected"),
        size("change_bytes", "change"),
        Column("difference_bytes", "diff", show=lambda size: NONE if size is None else f"{size:,}"),
        size("seen_gradient_bytes", "change + saved", 2),
        size("before_bytes", "live before", 4),
        size("after_bytes", "live after", 4),
        size("peak_bytes", "peak", 3),
        size("forward_bytes", "in forward", 5),
    )
    drawn = table_lines(shown_table(rows, columns), width, page=columns_page, binding=COLUMNS)
    told = line((f"Memory over the backward of each Transformer block, {unit.name}", "strong"))
    details = {place: _block_details(row) for place, row in enumerate(rows)}
    heading = (told, *wrapped(_EXPLAINED, width, "muted"), *drawn.heading)
    return Page(heading, tuple(drawn.rows), details, drawn.pages)


def _block_details(row: BlockRow) -> str:
    def size(count: int | None) -> str:
        return NONE if count is None else f"{count:,} bytes"

    facts = {
        "gradients of its parameters": row.gradient_bytes,
        "saved for backward": row.saved_bytes,
        "expected change": row.expected_bytes,
        "change of live memory": row.change_bytes,
        "difference": row.difference_bytes,
        "gradients by memory": row.seen_gradient_bytes,
        "live before": row.before_bytes,
        "live after": row.after_bytes,
        "the most in between": row.peak_bytes,
        "change over its forward": row.forward_bytes,
    }
    return "\n".join([row.module, "", *(f"{name}: {size(count)}" for name, count in facts.items())])


def _nothing(report: MemoryReport, what: str) -> str:
    if report.spec.recording:
        return f"A recording does not say {what}: it does not tell blocks apart."
    if report.spec.pass_ in WITHOUT_BACKWARD:
        return f"Nothing is saved for backward: {report.spec.pass_} has no backward."
    return f"This record does not say {what}."


def saved_page(report: MemoryReport, width: int, columns_page: int) -> Page:
    """Memory that each Transformer block saves for backward: its five largest contributors with their shares."""
    from cs336_tui.analysis.memory import saved_summary

    rows = saved_summary(report)
    if not rows:
        return message(_nothing(report, "what is saved for backward"), width)
    blocks = len(report.saved)
    total = sum(block.bytes for block in report.saved)
    unit = ByteUnit.for_largest(max(row.bytes for row in rows))
    held = f"{ByteUnit.for_largest(total).text(total)} in {blocks} Transformer block{'s' * (blocks != 1)}"
    heading = (line((f"Saved for backward: {held}", "strong"), (" · parameters left out", "muted")),)
    tables = [_saved_table(row, unit, width, columns_page) for row in rows]
    lines = [each for table in tables for each in (*table.lines, ())]
    return Page(heading, tuple(lines[:-1]), pages=max((table.pages for table in tables), key=len))


def _saved_table(row: SavedRow, unit: ByteUnit, width: int, columns_page: int) -> TableLines:
    """The contributors of a row with bars of their shares, below its title."""
    rest = SavedTensor(counted(row.rest_count, "other kind"), "", "", (), row.rest_count, row.rest_bytes)
    rest_share = row.rest_bytes / row.bytes if row.bytes else 0.0
    contributors = [*row.contributors, *([(rest, rest_share)] if row.rest_count else [])]
    columns: tuple[Column[Any], ...] = (
        Column("share", "%", text=lambda found: f"{found[1] * 100:.1f}"),
        Column("bytes", unit.name, text=lambda found: unit.figure(found[0].bytes)),
        Column("times", "×", rank=4, text=lambda found: "" if found[0] is rest else str(found[0].count)),
        Column("node", "saved by", left=True, text=lambda found: format.plain(found[0].node)),
        Column(
            "range", "part", left=True, rank=1, text=lambda found: "" if found[0] is rest else found[0].range or NONE
        ),
        Column("tensor", left=True, rank=2, text=lambda found: tensor(found[0].dtype, found[0].shape)),
    )  # fmt: skip
    room = max(width // 6, 0)
    drawn = table_lines(shown_table(contributors, columns), width - room - 2, page=columns_page, binding=COLUMNS)
    title = line((f"{row.modules}: {unit.text(row.bytes)}", "title"))
    bars = (Span(f"{bar(share, room)}  ", "memory") for _, share in contributors)
    return drawn._replace(
        heading=[title, *((Span(" " * (room + 2)), *names) for names in drawn.heading)],
        rows=[(share, *each) for share, each in zip(bars, drawn.rows, strict=True)],
    )


_SHORT = {
    "parameters_bytes": ("params", 3),
    "gradients_bytes": ("grads", 2),
    "optimizer_state_bytes": ("state", 1),
    "activations_bytes": ("activ.", 1),
    "communication_bytes": ("comm.", 2),
    "buffers_bytes": ("buffers", 7),
    "rest_bytes": ("rest", 6),
    "live_bytes": ("alloc.", 1),
    "predicted_live_bytes": ("predicted", 5),
    "peak_bytes": ("peak", 1),
    "predicted_peak_bytes": ("predicted", 4),
}
"""Headings of a screen's columns, and their ranks."""
_ALSO_NAMED = ("parallel", "optimizer")
"""Fields in which cells that are shown together may differ."""


def beside(reports: Sequence[RankMemoryReport], spec: CellSpec) -> list[RankMemoryReport]:
    """The reports of this cell and of those that differ from it in how their ranks share a step."""
    same = {field: getattr(spec, field) for field in _ALSO_NAMED}
    return [each for each in reports if msgspec.structs.replace(each.spec, **same) == spec]


def rank_lines(reports: Sequence[RankMemoryReport], width: int, columns_page: int) -> TableLines:
    """The table, and below its rows notes on what they mean."""
    table = rank_memory_table(reports)
    notes = ("params: parameters, state: optimizer state, comm.: communication", *table.footnotes)
    drawn = table_lines(_short(table.without("size")), width, page=columns_page, binding=COLUMNS)
    return drawn._replace(rows=[*drawn.rows, (), *(row for note in notes for row in wrapped(note, width, "muted"))])


def _short(table: Table) -> Table:
    """The table with headings of a screen; those of a high rank are left out first."""
    columns = (_SHORT.get(column.key, (column.heading, 0)) for column in table.columns)
    made = tuple(
        Column(column.key, title, column.left, rank)
        for column, (title, rank) in zip(table.columns, columns, strict=True)
    )
    return msgspec.structs.replace(table, columns=made)
