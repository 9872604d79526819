"""Tables laid out for a terminal: the columns that matter and fit, a verdict of one word a row, notes on request."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import msgspec
from rich.cells import cell_len

from cs336_tui.export.writing.formats import plain_text
from cs336_tui.export.writing.tables import SIGN, Column, Table, fitted, notes_left
from cs336_tui.export.writing.texts import one_line, plain
from cs336_tui.stats.quantities import NONE, UNKNOWN, UNSTATED, counted

if TYPE_CHECKING:
    from rich.console import Console

MOST_COLUMNS = 8
"""More are not taken in at a glance; those of rank 0 stay all the same."""
_GAP = 2
_HEADING_LINES = 2
_NARROWEST = 8
"""Characters that a column of text keeps where it is folded."""
_LONGEST_WORD = 16
"""A word of a text is not broken up to here."""
_VERDICTS = ("verdict", "outcome")
"""Keys of columns that say what a row comes to: of each the first word, and never said above the table."""
_NOTHING = ("", UNKNOWN, UNSTATED, NONE)
_NO_BREAK = "\u00a0"
_NUMBER = re.compile(r"[-+]?\d+(?:\.(\d+))?[~?]?(?: [†‡§¶]\d*)?")
_GOOD, _BAD = ("steady", "ok", "fits", "yes", "same"), ("oom", "failed", "killed", "no")
_PLAIN_WORDS = ("faster", "slower", "launch-bound", "not run", *_NOTHING)


class Looks(NamedTuple):
    """A terminal, and the amount to say on it."""

    width: int = 80
    styled: bool = True
    """False: no escape sequence at all, as for ``TERM=dumb``."""
    coloured: bool = True
    """False: weights of letters only, as for ``NO_COLOR``."""
    verbose: bool = False
    """True: the notes, too."""


class Notes(NamedTuple):
    """Notes on what stands before them that is no table."""

    lines: tuple[str, ...]


Part = Table | str | Notes | tuple[str, str]
"""A table, lines of text, notes, or a text after its label."""


def terminal_text(parts: Sequence[Part], looks: Looks) -> str:
    """Tables and what stands between them, for a terminal of this width; ends with a newline.

    Of a table stand: its caption, what all its rows have in common, and a row an item of at most `MOST_COLUMNS` columns
    (`Column.rank`); those that are left out are named. Findings and notes whose sign a row has follow in any case, all
    others where `looks` asks for them, as do rows that a finding stands for; else the number of notes.
    """
    console = _console(looks)
    labels = max((cell_len(part[0]) for part in parts if _is_labelled(part)), default=0) + _GAP
    told: dict[str, bool] = {}
    for before, part in zip([None, *parts], parts, strict=False):
        notes = part.lines if isinstance(part, Notes) else part.footnotes if isinstance(part, Table) else ()
        if before is not None and not (_is_labelled(before) and _is_labelled(part)) and not isinstance(part, Notes):
            console.print()
        if isinstance(part, str):
            for line in part.rstrip().split("\n"):
                console.print("\n".join(_wrapped(plain(line), looks.width)))
        elif isinstance(part, Table):
            _print_table(console, part if looks.verbose else part.in_brief, looks.width)
        elif not isinstance(part, Notes):
            _print_row(console, *part, labels)
        found = part.findings if isinstance(part, Table) else ()
        own = [note for note in notes if note not in told or SIGN.match(note)]
        shown = [note for note in own if looks.verbose or note in found or SIGN.match(note)]
        told |= {note: note in shown for note in own}
        for note in shown:
            for row, line in enumerate(_wrapped(one_line(note), looks.width - 2)):
                console.print(("  " if row else "- ") + line, style="dim")
    behind = sum(not is_shown for is_shown in told.values())
    if behind and not looks.verbose:
        console.print(f"\n{notes_left(behind)}", style="dim")
    file = console.file
    assert isinstance(file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def plain_parts(parts: Sequence[Part]) -> str:
    """The same as plain text of any width, with all notes."""
    lines: list[str] = []
    labels = max((len(part[0]) for part in parts if _is_labelled(part)), default=0) + _GAP
    for before, part in zip([None, *parts], parts, strict=False):
        if before is not None and not (_is_labelled(before) and _is_labelled(part)):
            lines.append("")
        if isinstance(part, Table):
            lines.append(plain_text(part).strip("\n"))
        elif isinstance(part, Notes):
            lines += part.lines
        else:
            lines.append(part.rstrip() if isinstance(part, str) else f"{part[0]:<{labels}}{part[1]}".rstrip())
    return "\n".join([*lines, ""])


def _is_labelled(part: Part) -> TypeGuard[tuple[str, str]]:
    return isinstance(part, tuple) and not isinstance(part, Notes)


def _console(looks: Looks) -> Console:
    from rich.console import Console

    return Console(
        file=StringIO(),
        width=looks.width,
        color_system="standard" if looks.styled else None,
        force_terminal=looks.styled,
        no_color=not looks.coloured,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )


def _print_row(console: Console, label: str, text: str, label_width: int) -> None:
    from rich.text import Text

    for row, part in enumerate(_wrapped(one_line(text), console.width - label_width)):
        console.print(Text.assemble((f"{'' if row else label:<{label_width}}", "dim"), part))


def _print_list(console: Console, label: str, gap: str, items: Iterable[str], width: int, end: str = "") -> None:
    """A list in as many lines as it takes, each broken between two items or within one that is long."""
    texts = map(one_line, items)
    kept = (text if cell_len(text) > width // 2 else text.replace(" ", _NO_BREAK) for text in texts)
    for part in _wrapped(label + gap.join(kept) + end, width):
        console.print(part.replace(_NO_BREAK, " "), style="dim")


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of this width, as it is where it fits; further lines begin as deep as the first."""
    if cell_len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(text, max(width, 20), subsequent_indent=indent, break_on_hyphens=False) or [""]


class _Shown(NamedTuple):
    """A column on the terminal, its texts, and the least width that holds them."""

    column: Column
    texts: tuple[str, ...]
    width: int

    @classmethod
    def of(cls, column: Column, texts: Sequence[str]) -> _Shown:
        texts = [one_line(text) for text in texts]
        texts = texts if column.left else _aligned(texts)
        width = max([_heading_width(one_line(column.header)), *map(cell_len, texts)])
        return cls(column, tuple(texts), width)

    def cell(self, row: int, width: int) -> str:
        """The text of a row; of numbers moved to the right, as rich would strip what aligns their decimal points."""
        text = self.texts[row]
        return text if self.column.left else " " * (width - cell_len(text)) + text

    @property
    def least_width(self) -> int:
        """The width with its texts folded between words; numbers are not folded."""
        if not self.column.left:
            return self.width
        longest = max((cell_len(word) for text in self.texts for word in text.split()), default=0)
        return min(self.width, max(_NARROWEST, min(longest, _LONGEST_WORD), _heading_width(self.column.header)))


def _print_table(console: Console, table: Table, width: int) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    if table.caption:
        for part in _wrapped(one_line(table.caption).replace(" · ", f"{_NO_BREAK}· "), width):
            console.print(part.replace(_NO_BREAK, " "), style="bold")
    brief = _in_a_word(table)
    texts = list(zip(*brief.rows, strict=True)) if brief.rows else [()] * len(brief.columns)
    columns = list(map(_Shown.of, brief.columns, texts))
    rest, shared = _parted(columns, len(table.rows))
    if shared:
        said = (f"{each.column.header} {each.texts[0].strip()}" for each in shared)
        _print_list(console, "every row: ", " · ", said, width)
    kept, widths = _fitting(rest, width)
    drawn = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold"
    )
    for each, column_width in zip(kept, widths, strict=True):
        lines = _in_lines(one_line(each.column.header), column_width)
        heading = Text("\n".join(lines), justify=each.column.align)
        drawn.add_column(heading, width=column_width, overflow="fold", no_wrap=not each.column.left)
    for row in range(len(table.rows)):
        cells = [(each, each.cell(row, column_width)) for each, column_width in zip(kept, widths, strict=True)]
        drawn.add_row(*(Text(text, style=_style(each.column, each.texts[row])) for each, text in cells))
    console.print(drawn)
    if gone := [each for each in rest if each not in kept]:
        names = [each.column.header for each in gone]
        _print_list(console, f"+ {counted(len(gone), 'column')}: ", ", ", names, width, "; | less -S shows all")


def _parted(columns: Sequence[_Shown], rows: int) -> tuple[list[_Shown], list[_Shown]]:
    """The columns of the table, and those in which all rows say the same; what says nothing is in neither."""
    rest: list[_Shown] = []
    shared: list[_Shown] = []
    for place, each in enumerate(columns):
        taken = {text.strip() for text in each.texts}
        if place and rows and taken <= {*_NOTHING}:
            continue
        same = rows > 1 and len(taken) == 1 and place > 0 and each.column.key not in _VERDICTS
        (shared if same else rest).append(each)
    return rest, shared


def _fitting(columns: Sequence[_Shown], width: int) -> tuple[list[_Shown], list[int]]:
    """The columns that stay, and the width of each. The first and the verdict do; headings have one line if all can."""
    needed = [not place or each.column.key in _VERDICTS for place, each in enumerate(columns)]
    ranks = [None if is_needed else each.column.rank for is_needed, each in zip(needed, columns, strict=True)]
    most, least = [each.width for each in columns], [each.least_width for each in columns]
    widths = fitted(most, ranks, width + _GAP, gap=_GAP, most=MOST_COLUMNS, least=least)
    in_one_line = [max(now, cell_len(columns[place].column.header)) for place, now in widths.items()]
    has_room = sum(in_one_line) + _GAP * (len(widths) - 1) <= width
    return [columns[place] for place in widths], in_one_line if has_room else [*widths.values()]


def _in_a_word(table: Table) -> Table:
    """The table with one verdict a row: the first word of what is said of it; of a cell without a result its ending
    instead. A row in doubt without a column for it gets one, an outcome in doubt a question mark."""
    keys = [column.key for column in table.columns]
    place = next((keys.index(key) for key in _VERDICTS if key in keys), None)
    status = keys.index("status") if "status" in keys and place is not None and keys[place] == "verdict" else None
    doubts = table.doubts or ("",) * len(table.rows)
    if place is None:
        if not any(doubts):
            return table
        found = Column("verdict", "verdict", left=True)
        rows = tuple((*row, doubt) for row, doubt in zip(table.rows, doubts, strict=True))
        return msgspec.structs.replace(table, columns=(*table.columns, found), rows=rows)

    def word(row: Sequence[str], doubt: str) -> str:
        ended = _first(row[status]) if status is not None else ""
        if ended not in ("", "ok"):
            return ended
        return _first(row[place]) + ("?" if doubt else "")

    rows = tuple(
        tuple(word(row, doubt) if i == place else text for i, text in enumerate(row))
        for row, doubt in zip(table.rows, doubts, strict=True)
    )
    told = msgspec.structs.replace(table, rows=rows)
    return told.without("status") if status is not None else told


def _first(text: str) -> str:
    return text.partition(",")[0].strip()


def _aligned(texts: Sequence[str]) -> list[str]:
    """Numbers with their decimal points below each other; as they are if one is no number."""
    found = [_NUMBER.fullmatch(text) for text in texts if text not in _NOTHING]
    if not all(found):
        return list(texts)
    wholes = [re.match(r"[-+]?\d+", text) for text in texts]
    # Characters from the decimal point on.
    after = [len(text) - whole.end() if whole else 0 for text, whole in zip(texts, wholes, strict=True)]
    most = max(after, default=0)
    return [text + " " * (most - own) if text not in _NOTHING else text for text, own in zip(texts, after, strict=True)]


def _heading_width(heading: str) -> int:
    """The least width in which a heading stands in two lines."""
    return next(
        width
        for width in range(max(map(cell_len, heading.split()), default=0), cell_len(heading) + 1)
        if len(_in_lines(heading, width)) <= _HEADING_LINES
    )


def _in_lines(heading: str, width: int) -> list[str]:
    return textwrap.wrap(heading, max(width, 1), break_long_words=False, break_on_hyphens=False)


def _style(column: Column, text: str) -> str:
    if column.key not in _VERDICTS or text in _PLAIN_WORDS:
        return ""
    return "green" if text in _GOOD else "red" if text in _BAD else "yellow"
