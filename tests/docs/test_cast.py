"""The demo that the README shows: what the recorder makes of a terminal, and the recording itself."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pyte

from tests.terminal import Terminal
from tools.cast import COLUMNS, ROOT, ROWS, Camera, Picture, Run, rows_of, to_cast, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def screen_of(text: str, columns: int = 20, rows: int = 3) -> pyte.Screen:
    screen = pyte.Screen(columns, rows)
    pyte.Stream(screen).feed(text)
    return screen


def played(cast: str) -> list[tuple[float, pyte.Screen]]:
    """The screen after each event of an asciicast."""
    head, *events = map(json.loads, cast.splitlines())
    screen = pyte.Screen(head["width"], head["height"])
    stream, found = pyte.Stream(screen), []
    for at, kind, text in events:
        assert kind == "o"
        stream.feed(text)
        found.append((at, list(screen.display)))
    return found


def test_a_row_keeps_places_and_looks() -> None:
    rows = rows_of(screen_of("a \x1b[1;38;2;255;0;0mred\x1b[0m  \x1b[44m  \x1b[0m\r\n\x1b[7mback\x1b[0m"))
    assert rows[0][:2] == (Run(0, "a "), Run(2, "red", ink="#ff0000", bold=True))
    assert rows[0][2] == Run(7, "  ", paper="#79c0ff")
    assert (rows[1][0].text, rows[1][0].paper) == ("back", rows[0][0].ink)
    assert rows[2] == ()


def test_a_cast_plays_what_was_seen() -> None:
    screens = [screen_of(text) for text in ("one\r\ntwo", "one\r\n\x1b[3m2\x1b[0m", "\r\n\r\n   end")]
    cast = to_cast([Picture(0.5, rows_of(each)) for each in screens], 20, 3)
    assert json.loads(cast.splitlines()[0])["version"] == 2
    shown = played(cast)
    assert [at for at, _ in shown] == [0, 0.5, 1.0, 1.5]
    assert [rows for _, rows in shown[:3]] == [list(each.display) for each in screens]
    assert "one" not in cast.splitlines()[2]  # what has not changed is not written again


def test_an_svg_shows_one_picture_after_the_other() -> None:
    pictures = [Picture(seconds, rows_of(screen_of(text))) for seconds, text in ((1, "a < b"), (3, "\x1b[1mc"))]
    drawn = ElementTree.fromstring(to_svg(pictures, 20))
    style = drawn.findtext(f"{SVG}style") or ""
    assert "@keyframes k0{0.000%{visibility:visible}25.000%{visibility:hidden}}" in style
    assert "@keyframes k1{0%{visibility:hidden}25.000%{visibility:visible}}" in style
    assert [each.text for each in drawn.iter(f"{SVG}text")] == ["a < b", "c"]
    assert [each.get("visibility") for each in drawn.findall(f"{SVG}g/{SVG}g")] == ["hidden", None]


def test_a_picture_waits_until_the_screen_is_still() -> None:
    code = "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.1)\ninput()"
    terminal = Terminal([sys.executable, "-c", code], columns=10, rows=5)
    try:
        terminal.until("0")
        camera = Camera(terminal)
        camera.take(1)
        camera.take(2)
        assert [[run.text.strip() for row in each.rows for run in row] for each in camera.pictures] == [["0", "1", "2"]]
        assert camera.pictures[0].seconds == 3
    finally:
        terminal.close()


def test_the_demo_is_whole_small_and_shown_first() -> None:
    svg, cast = ROOT / "docs" / "demo.svg", ROOT / "docs" / "demo.cast"
    assert svg.stat().st_size < 1_000_000
    text = svg.read_text(encoding="utf-8")
    assert not re.search(r"(?:href|src|url)\W+https?:|@import|@font-face", text)
    pictures = len(ElementTree.fromstring(text).findall(f"{SVG}g/{SVG}g"))
    shown = played(cast.read_text(encoding="utf-8"))
    assert pictures == len(shown) - 1 >= 20
    assert all(len(rows) == ROWS and len(rows[0]) == COLUMNS for _, rows in shown)
    seen = "\n".join("\n".join(rows) for _, rows in shown)
    for wanted in ("cs336-tui --context 64", "warm-up", "measuring", "peak", "starting point", "Save as preset"):
        assert wanted in seen
    assert str(Path.home()) not in seen
    for page, name in (("README.md", "docs/demo.svg"), ("docs/index.md", "demo.svg")):
        first = re.search(r"!\[.*?\]\((.*?)\)", (ROOT / page).read_text(encoding="utf-8"))
        assert first
        assert first[1] == name


def test_every_picture_of_the_docs_is_an_svg_without_escapes() -> None:
    for path in (ROOT / "docs").glob("*.svg"):
        assert ElementTree.fromstring(path.read_text(encoding="utf-8")).tag == f"{SVG}svg", path.name
