"""Records the demo: ``make cast``. Writes ``docs/demo.cast`` (asciicast v2) and ``docs/demo.svg``, which moves.

A real shell in a real pty is driven with keys, and a small model is measured on this machine: record it on a quiet one.
While something runs, pictures follow each other as it happens; else each stands for a time that is written here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte
from pyte.screens import Char

from cs336_tui.tui.tab_list import TABS
from tests.terminal import Terminal

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "demo.svg"
COLUMNS, ROWS = 120, 36
COMMAND = "cs336-tui --context 64 --pass train-step --attention naive,sdpa,flash --warmup 12 --steps 24"
_EVERY_S, _MOST_S = 1.3, 100.0
"""Between two pictures of what runs, and for how long it may run."""
_RUN_S, _LOOK_S, _READ_S, _KEY_S = 0.45, 1.8, 3.0, 0.06
_CELL, _LINE = 8, 18
"""Width and height of a character in the picture, in its own units."""
_MARGIN = 10
_STILL_S, _PATIENCE_S = 0.4, 5.0
_PENDING = "  …  "
"""A verdict that is being worked out."""
_FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_PAPER, _INK = "#0d1117", "#d0d7de"
_NAMED = {
    "black": "#1b1f24", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "blue": "#79c0ff",
    "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#d0d7de", "brightblack": "#8b949e", "brightred": "#ffa198",
    "brightgreen": "#9be9a8", "brightbrown": "#f2cc60", "brightblue": "#a5d6ff", "brightmagenta": "#e2c5ff",
    "brightcyan": "#b3f0ff", "brightwhite": "#f0f6fc",
}  # fmt: skip
"""The sixteen colours by pyte's names; brown is yellow."""


class Run(NamedTuple):
    """Characters beside each other that look alike, from a column on."""

    column: int
    text: str
    ink: str = _INK
    paper: str = _PAPER
    bold: bool = False
    italic: bool = False
    underlined: bool = False


Row = tuple[Run, ...]


class Picture(NamedTuple):
    """A screen, and the seconds for which it stands."""

    seconds: float
    rows: tuple[Row, ...]


def rows_of(screen: pyte.Screen) -> tuple[Row, ...]:
    """The cells of a terminal's screen; blank cells without a colour are left out."""
    return tuple(_row(screen.buffer[line][column] for column in range(screen.columns)) for line in range(screen.lines))


def _row(cells: Iterable[Char]) -> Row:
    runs, column = [], 0
    for looks, group in groupby(cells, key=_looks):
        text = "".join(each.data for each in group)
        width = len(text)
        if text.strip() or looks[1] != _PAPER:
            runs.append(Run(column, text, *looks))
        column += width
    return tuple(runs)


def _looks(cell: Char) -> tuple[str, str, bool, bool, bool]:
    ink, paper = _colour(cell.fg, _INK), _colour(cell.bg, _PAPER)
    if cell.reverse:
        ink, paper = paper, ink
    return ink, paper, cell.bold, cell.italics, cell.underscore


def _colour(name: str, usual: str) -> str:
    return usual if name == "default" else _NAMED.get(name, f"#{name}")


def to_cast(pictures: Sequence[Picture], columns: int, rows: int) -> str:
    """The pictures as an asciicast v2: each event writes the rows that changed."""
    lines = [json.dumps({"version": 2, "width": columns, "height": rows, "title": "cs336-tui"})]
    shown: tuple[Row | None, ...] = (None,) * rows
    at = 0.0
    for picture in pictures:
        changed = [number for number in range(rows) if picture.rows[number] != shown[number]]
        written = "".join(f"\x1b[{number + 1};1H\x1b[0m\x1b[2K{_ansi(picture.rows[number])}" for number in changed)
        lines.append(json.dumps([round(at, 3), "o", ("\x1b[?25l" if not at else "") + written], ensure_ascii=False))
        shown, at = picture.rows, at + picture.seconds
    lines.append(json.dumps([round(at, 3), "o", ""]))
    return "\n".join(lines) + "\n"


def _ansi(row: Row) -> str:
    return "".join(f"\x1b[{run.column + 1}G\x1b[{_sgr(run)}m{run.text}" for run in row)


def _sgr(run: Run) -> str:
    found = ["0", *(code for code, on in (("1", run.bold), ("3", run.italic), ("4", run.underlined)) if on)]
    for code, colour, usual in (("38", run.ink, _INK), ("48", run.paper, _PAPER)):
        if colour != usual:
            found.append(";".join([code, "2", *(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))]))
    return ";".join(found)


def to_svg(pictures: Sequence[Picture], columns: int) -> str:
    """The pictures as one SVG that shows one after the other, for ever. Each row that occurs is drawn once.

    A reader that does not move, as on paper or where motion is unwanted, shows the one that stands longest.
    """
    rows = len(pictures[0].rows)
    width, height = columns * _CELL + 2 * _MARGIN, rows * _LINE + 2 * _MARGIN
    total = sum(picture.seconds for picture in pictures)
    known = {row: f"r{number}" for number, row in enumerate(dict.fromkeys(r for p in pictures for r in p.rows if r))}
    still = max(range(len(pictures)), key=lambda number: pictures[number].seconds)
    styles, groups, begin = [], [], 0.0
    for number, picture in enumerate(pictures):
        end = begin + picture.seconds
        first, last = (f"{100 * at / total:.3f}%" for at in (begin, end))
        before = "" if not number else "0%{visibility:hidden}"
        after = "" if number == len(pictures) - 1 else f"{last}{{visibility:hidden}}"
        styles.append(f"@keyframes k{number}{{{before}{first}{{visibility:visible}}{after}}}")
        styles.append(f"#p{number}{{animation:k{number} {total:g}s step-end infinite}}")
        drawn = "".join(f'<use href="#{known[row]}" y="{at * _LINE}"/>' for at, row in enumerate(picture.rows) if row)
        hidden = "" if number == still else ' visibility="hidden"'
        groups.append(f'<g id="p{number}"{hidden}>{drawn}</g>')
        begin = end
    shapes = "".join(f'<g id="{name}">{"".join(map(_drawn, row))}</g>' for row, name in known.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img">'
        f"<title>cs336-tui measures a small model: steps live, memory over a step, a race</title>"
        f"<style>text{{font:13.3px {_FONT};white-space:pre}}rect{{shape-rendering:crispEdges}}"
        f".b{{font-weight:bold}}.i{{font-style:italic}}.u{{text-decoration:underline}}{''.join(styles)}"
        f"@media (prefers-reduced-motion:reduce){{g{{animation:none!important}}}}</style>"
        f'<defs>{shapes}</defs><rect width="100%" height="100%" rx="6" fill="{_PAPER}"/>'
        f'<g transform="translate({_MARGIN} {_MARGIN})">{"".join(groups)}</g></svg>\n'
    )


def _drawn(run: Run) -> str:
    """A run as SVG, as wide as its cells whatever the font."""
    x, width = run.column * _CELL, len(run.text) * _CELL
    parts = []
    if run.paper != _PAPER:
        parts.append(f'<rect x="{x:g}" width="{width + 0.5:g}" height="{_LINE + 0.5}" fill="{run.paper}"/>')
    start = len(run.text) - len(run.text.lstrip())
    if text := run.text.strip():
        kinds = "".join(name for name, on in (("b", run.bold), ("i", run.italic), ("u", run.underlined)) if on)
        scaled = "" if text.isascii() else ' lengthAdjust="spacingAndGlyphs"'
        classes = f' class="{" ".join(kinds)}"' if kinds else ""
        parts.append(
            f'<text x="{x + start * _CELL:g}" y="{_LINE - 5}" fill="{run.ink}" textLength="{len(text) * _CELL:g}"'
            f"{scaled}{classes}>{escape(text)}</text>"
        )
    return "".join(parts)


class Camera:
    """Takes pictures of a terminal that a shell runs in."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.pictures: list[Picture] = []

    def take(self, seconds: float) -> None:
        """A picture of the screen as soon as nothing on it changes any more."""
        rows = self._settled()
        if self.pictures and self.pictures[-1].rows == rows:
            seconds += self.pictures.pop().seconds
        self.pictures.append(Picture(round(seconds, 3), rows))

    def _settled(self) -> tuple[Row, ...]:
        before, since = self.terminal.look(rows_of), time.monotonic()
        patience = time.monotonic() + _PATIENCE_S
        while time.monotonic() - since < _STILL_S or (_PENDING in self.terminal.text() and time.monotonic() < patience):
            time.sleep(0.05)
            if (now := self.terminal.look(rows_of)) != before:
                before, since = now, time.monotonic()
        return before

    def film(self, seen: str | Callable[[str], bool]) -> None:
        """Pictures of what runs, as it happens, until the screen shows the text or satisfies the predicate."""
        wanted, ends_at = (lambda text: seen in text) if isinstance(seen, str) else seen, time.monotonic() + _MOST_S
        while not wanted(self.terminal.text()):
            assert time.monotonic() < ends_at, f"{seen!r} did not appear; the screen was:\n{self.terminal.text()}"
            self.pictures.append(Picture(_EVERY_S, self.terminal.look(rows_of)))
            time.sleep(_EVERY_S)

    def type(self, text: str, seconds: float = _KEY_S) -> None:
        """Types it key by key; a picture of each third, as people type."""
        for at in range(0, len(text), 3):
            self.terminal.send(text[at : at + 3])
            self.terminal.until(lambda screen, typed=text[: at + 3]: typed.rstrip() in screen)  # type: ignore[misc]
            self.take(3 * seconds)

    def press(self, keys: str, seen: str | Callable[[str], bool], seconds: float = _LOOK_S) -> None:
        self.terminal.send(keys)
        self.terminal.until(seen)
        self.take(seconds)


def record() -> list[Picture]:
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        environment = {
            "HOME": str(home),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PS1": "$ ",
            "HISTFILE": "",
            "TZ": "UTC",
        }
        shell = ["bash", "--norc", "--noprofile", "-i"]
        terminal = Terminal(shell, columns=COLUMNS, rows=ROWS, env=environment, cwd=home)
        try:
            terminal.until("$ ")
            terminal.send("bind 'set enable-bracketed-paste off'; clear\r")
            terminal.until(lambda screen: "bind" not in screen and "$" in screen)
            camera = Camera(terminal)
            camera.take(0.8)
            _play(camera)
            return camera.pictures
        finally:
            terminal.close()


def _play(camera: Camera) -> None:
    """The scenes of the demo: steps live, memory over a step, a race of three attentions."""
    camera.type(COMMAND)
    camera.press("\r", "Configure", _LOOK_S)
    camera.terminal.send("r")
    camera.film("100 % · 108/108 steps")
    camera.take(_READ_S)
    camera.terminal.send(TABS["memory"].key, "Memory")
    camera.terminal.send("n")
    camera.film("live · ")
    camera.take(_READ_S)
    camera.press("U", "Tune: race", _LOOK_S)
    camera.terminal.send("\t\t\x15")
    camera.type("40s")
    camera.terminal.send("\r")
    camera.film("Save as preset")
    camera.take(_READ_S)


def main() -> None:
    pictures = record()
    TARGET.with_suffix(".cast").write_text(to_cast(pictures, COLUMNS, ROWS), encoding="utf-8")
    TARGET.write_text(to_svg(pictures, COLUMNS), encoding="utf-8")
    seconds = sum(picture.seconds for picture in pictures)
    print(f"wrote {TARGET.relative_to(ROOT)}: {len(pictures)} pictures, {seconds:g} s, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
