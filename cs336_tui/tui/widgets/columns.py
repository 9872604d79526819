"""Tables of text: which columns fit in a width, and rows that stand in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from cs336_tui.tui.widgets.lines import Line, Span

_GAP = 2
_ALL_ALIKE = 20
"""Added to the rank of a column whose values are all alike: it tells least."""


class Column(NamedTuple):
    """A column's heading; `left` says to which side its texts stand."""

    name: str
    left: bool = False
    rank: int = 0
    """0 stays; of the others the highest goes first when the table is too wide."""


class Layout(NamedTuple):
    """The columns that are shown, and how wide each is."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    """Of every column, also of those that are left out."""
    kept: tuple[int, ...]

    @property
    def heading(self) -> str:
        return self.row(tuple(column.name for column in self.columns))

    def row(self, texts: Sequence[str]) -> str:
        """One text a column, in the columns that are shown, and a gap behind each."""
        return "".join(self._padded(texts, index) for index in self.kept)

    def spans(self, texts: Sequence[str], roles: Mapping[int, str]) -> Line:
        """As `row`, the columns in `roles` (by their index) in styles of their own."""
        spans: list[Span] = []
        for index in self.kept:
            text, role = self._padded(texts, index), roles.get(index, "text")
            if spans and spans[-1].role == role:
                spans[-1] = Span(spans[-1].text + text, role)
            else:
                spans.append(Span(text, role))
        return tuple(spans)

    def _padded(self, texts: Sequence[str], index: int) -> str:
        text, pad = texts[index], " " * (self.widths[index] - cell_len(texts[index]))
        return (text + pad if self.columns[index].left else pad + text) + " " * _GAP


def lay_out(
    columns: tuple[Column, ...],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    least: Sequence[int] = (),
    alike: Sequence[bool | None] = (),
) -> Layout:
    """The columns that `width` holds, as wide as these rows need and at least as wide as `least`.

    `alike` says of columns whether their values are all the same where these rows do not tell, None where they do.
    """
    widths: list[int] = []
    ranks: list[int] = []
    for index, column in enumerate(columns):
        texts = [row[index] for row in rows]
        widths.append(max([cell_len(column.name), *least[index : index + 1], *map(cell_len, texts)]))
        told = alike[index] if index < len(alike) else None
        same = told if told is not None else len(texts) > 1 and len(set(texts)) == 1
        ranks.append(column.rank + _ALL_ALIKE * same)
    kept = set(range(len(columns)))
    for index in sorted(kept, key=lambda i: -ranks[i]):
        if sum(widths[i] + _GAP for i in kept) <= width:
            break
        if columns[index].rank:
            kept.remove(index)
    return Layout(columns, tuple(widths), tuple(sorted(kept)))
