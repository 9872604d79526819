"""Memory by what it is held for, and single allocations, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from cs336_tui.events.reports import Block, Site
from cs336_tui.tui import format
from cs336_tui.tui.charts.blocks import bar
from cs336_tui.tui.charts.byte_unit import ByteUnit
from cs336_tui.tui.widgets.columns import Column, lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line

_Category = TypeVar("_Category", bound=str)

BACKWARD = "∂"
"""Marks what belongs to the backward of a place."""
NONE = "–"
_NAMES = len("optimizer state") + 1
_FIGURES = len("12.345 GB 100 %")
_NARROWEST_BAR, _WIDEST_BAR = 6, 40


def category_name(category: str) -> str:
    """``optimizer_state`` as people read it."""
    return category.replace("_", " ")


def category_lines(by_category: Mapping[_Category, int], unit: ByteUnit, width: int, rows: int) -> list[Line]:
    """Every category, its size, its share and a bar of it as far as `width` allows.

    They stand side by side where there are fewer `rows` than categories.
    """
    abreast = -(-len(by_category) // max(rows, 1))
    each = width // abreast - 2
    bar_width = min(each - _NAMES - _FIGURES - 1, _WIDEST_BAR)
    total = sum(by_category.values())
    cells: list[Line] = []
    for category, held in by_category.items():
        share = held / total if total else 0.0
        spans = [Span(f"{category_name(category):<{_NAMES}}", "muted")]
        if bar_width >= _NARROWEST_BAR:
            spans.append(Span(bar(share, bar_width) + " ", "memory"))
        spans.append(Span(f"{unit.text(held):>9}"))
        if each >= _NAMES + _FIGURES:
            spans.append(Span(f" {share * 100:3.0f} %", "muted"))
        cells.append((*spans, Span("  ")))
    down = -(-len(cells) // abreast)
    return [tuple(span for cell in cells[row::down] for span in cell) for row in range(down)]


def where(site: Site) -> str:
    """The place in the model's code, else the operation; with a mark when it is in the backward of it."""
    place = format.plain(site.frame or site.op) or (format.NOT_AVAILABLE if site.phase else "before the step")
    return f"{BACKWARD} {place}" if site.backward else place


def tensor(dtype: str | None, shape: Sequence[int] | None) -> str:
    """``bfloat16 4×128×768``; empty where the allocation is no tensor's."""
    sizes = "×".join(map(str, shape)) if shape is not None else ""
    return " ".join(filter(None, ((dtype or "").removeprefix("torch."), sizes)))


def blocks_table(blocks: Sequence[Block], unit: ByteUnit, width: int) -> tuple[Line, list[Line]]:
    """The heading, and a row for each allocation with what fits `width`."""
    columns = (
        Column(unit.name),
        Column("held for", left=True, rank=2),
        Column("part", left=True, rank=1),
        Column("tensor", left=True, rank=3),
        Column("phase", left=True, rank=4),
        Column("operation", left=True, rank=5),
        Column(f"where ({BACKWARD} in backward)", left=True),
    )
    texts = [
        (
            unit.figure(block.bytes),
            category_name(block.category),
            block.site.range or NONE,
            tensor(block.dtype, block.shape) or NONE,
            block.site.phase or NONE,
            format.plain(block.site.op) or NONE,
            where(block.site),
        )
        for block in blocks
    ]
    layout = lay_out(columns, texts, width)
    return line((layout.heading, "muted")), [line(layout.row(row)) for row in texts]


def block_details(block: Block) -> str:
    """All that is known of an allocation, a line each."""
    site = block.site
    facts = {
        "size": f"{block.bytes:,} bytes ({ByteUnit.for_largest(block.bytes).text(block.bytes)})",
        "held for": category_name(block.category),
        "tensor": tensor(block.dtype, block.shape) or "none known, such as a workspace",
        "operation": site.op or format.NOT_AVAILABLE,
        "first frame": site.frame or "unknown",
        "part of the model": site.range or "none",
        "phase": site.phase or "before the step",
        "in backward": "yes; the frame is that of the forward operation" if site.backward else "no",
    }
    return "\n".join(f"{name}: {value}" for name, value in facts.items())
