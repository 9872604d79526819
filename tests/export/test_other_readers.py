"""Exports read by other programs: pandoc reads LaTeX, Typst, markdown and HTML, Typst's compiler compiles its own. The
summary as people hand it in: in a real browser, light, dark and printed, and as a PDF by pandoc and typst."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cs336_tui.config.axis import UserError
from cs336_tui.events.events import Notice
from cs336_tui.export.catalogue import SUMMARY, Choice, formats_of, offers, text_of
from cs336_tui.export.folder import Source, write_summary
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writing.files import SUFFIXES
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.session.state import SessionState, fold
from cs336_tui.session.store import load
from tests.export.grids import by, grid
from tests.export.test_formats import TABLES, wide_table
from tests.made_kernels import a_kernel_report
from tests.samples import DEMO_LOG, START, a_spec, report_events

READERS = {"latex": "latex", "typst": "typst", "markdown": "gfm", "html": "html"}
GROUPED, WIDE = TABLES["groups of columns"], wide_table(12, "one note", "[another] note")


def pandoc(file: Path | str, format_: str) -> dict[str, Any]:
    """The document as pandoc reads it, without a warning."""
    pypandoc = pytest.importorskip("pypandoc", reason="pip install pypandoc_binary")
    words = [pypandoc.get_pandoc_path(), "-f", READERS[format_], "-t", "json", "--fail-if-warnings"]
    text = file.read_text() if isinstance(file, Path) else file
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tables_in(found: object) -> Iterator[dict[str, Any]]:
    """The tables of pandoc's document, wherever they stand."""
    if isinstance(found, dict):
        if found.get("t") == "Table":
            yield found
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from tables_in(each)


def words_of(found: object) -> str:
    """The text of a part of pandoc's document."""
    if isinstance(found, dict):
        if found.get("t") == "Math":
            return str(found["c"][1]).replace(r"\pm", "±")
        return str(found["c"]) if found.get("t") == "Str" else " ".join(map(words_of, found.values()))
    return " ".join(map(words_of, found)) if isinstance(found, list) else ""


def cells_of(table: dict[str, Any]) -> list[list[str]]:
    """The texts of a table's cells, its head first."""
    _, _, _, head, bodies, _ = table["c"]
    rows = [*head[1], *(row for body in bodies for row in (*body[2], *body[3]))]
    return [[" ".join(words_of(cell[4]).split()) for cell in row[1]] for row in rows]


@pytest.fixture(scope="module")
def demo() -> SessionState:
    return load(DEMO_LOG)


@pytest.mark.parametrize("format_", READERS)
def test_pandoc_reads_everything_that_a_session_is_exported_as(demo: SessionState, format_: str) -> None:
    texts = []
    for offer in offers(demo):
        if format_ in formats_of(offer.what) and offer.what != SUMMARY:
            try:
                texts.append(text_of(Choice(what=offer.what, format=format_), demo))
            except UserError:
                continue
    begin = {"latex": r"\begin{tabular}", "typst": "table(\n", "markdown": "\n| -", "html": "<table "}[format_]
    whole = "\n\n".join(texts)
    assert len(texts) > 12
    assert len(list(tables_in(pandoc(whole, format_)))) == whole.count(begin)


@pytest.mark.parametrize("format_", READERS)
def test_pandoc_finds_the_times_of_the_results_in_their_rows(demo: SessionState, format_: str) -> None:
    text = text_of(Choice(format=format_), demo)
    (table,) = tables_in(pandoc(text, format_))
    head, *rows = cells_of(table)
    mean = head.index("mean (ms)")
    expected = [cell.running.mean * 1e3 for cell in demo.cells.values() if cell.running.n]
    found = [float(row[mean]) for row in rows if row[mean] != "n/a"]
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("format_", READERS)
def test_what_is_wide_and_what_has_groups_is_whole_for_pandoc(format_: str) -> None:
    grouped, wide = tables_in(pandoc(render_all([GROUPED, WIDE], format_), format_))
    assert cells_of(grouped)[-1] == ["small", "1", "2", "3"]
    assert cells_of(wide)[-1] == ["12.34 ± 0.56"] * 12
    if format_ in ("latex", "typst"):
        assert words_of(grouped["c"][1]).split() == ["Devices", "side", "by", "side"]


def test_a_latex_table_is_referred_to_by_its_label() -> None:
    found = pandoc(render(GROUPED, "latex") + r"See Table~\ref{tab:devices}.", "latex")
    assert '"reference", "tab:devices"' in json.dumps(found)
    assert '"1"' in json.dumps(found["blocks"][-1]), "pandoc knows its number"


@pytest.mark.parametrize("what", ["results", "pivot", "layout devices", "layout raw-steps", "report roofline"])
def test_typst_compiles(demo: SessionState, what: str, tmp_path: Path) -> None:
    typst = pytest.importorskip("typst", reason="pip install typst")
    file = tmp_path / f"t.{SUFFIXES['typst']}"
    text = text_of(Choice(what=what, format="typst"), demo)
    label = text.partition(") <")[2].partition(">")[0]
    file.write_text(f"{text}\nSee @{label}.\n")
    assert typst.compile(str(file)).startswith(b"%PDF")


_PPI = 50
WIDTHS = (800, 1200, 1600)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """<script>
addEventListener("load", () => parent.postMessage([
  innerWidth, document.documentElement.scrollWidth,
  [...document.querySelectorAll("body, table, pre, figure")].filter(e => e.scrollWidth > e.clientWidth + 1).length,
  [...document.images].filter(e => !e.naturalWidth).length,
], "*"));
</script>"""
"""Tells the width of the window and of the page, how many things scroll sideways, how many figures are not shown."""
FRAMES = """<script>
const told = [];
addEventListener("message", each => { told.push(each.data); document.title = JSON.stringify(told); });
</script>"""


def a_session(contexts: Sequence[int]) -> SessionState:
    """Cells of long names, one out of memory, a profile with names of kernels that have no spaces."""
    state = grid(by(pass_=["forward", "forward+backward", "train-step"], context_length=contexts), oom=[5])
    fold([*report_events(a_kernel_report(a_spec())), Notice(at=START, text="long/" * 40)], state)
    state.commands.append("cs336-tui bench " + " ".join(f"--option-{number} some-value" for number in range(30)))
    return state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("documents")
    (base / "log.jsonl").write_bytes(b"")
    write_summary(base / "out", [Source(base / "log.jsonl", a_session([128, 4096]))])
    return base / "out"


@pytest.fixture
def chromium(tmp_path: Path) -> Callable[..., str]:
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")

    def run(*words: str) -> str:
        quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/own")
        done = subprocess.run([str(CHROMIUM), *quiet, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_nothing_scrolls_sideways_at_any_width(folder: Path, tmp_path: Path, chromium: Callable[..., str]) -> None:
    page = (folder / "summary.html").read_text()
    (tmp_path / "page.html").write_text(page.replace("</head>", f"{PROBE}</head>"))
    frames = "".join(
        f'<iframe src="page.html" width="{width}" height="900" frameborder="0"></iframe>' for width in WIDTHS
    )
    (tmp_path / "all.html").write_text(f"<!DOCTYPE html><html><head>{FRAMES}</head><body>{frames}</body></html>")
    dumped = chromium("--virtual-time-budget=5000", "--dump-dom", (tmp_path / "all.html").as_uri())
    assert sorted(json.loads(re.search("<title>(.*?)</title>", dumped)[1])) == [
        [width, width, 0, 0] for width in WIDTHS
    ]


def test_the_page_follows_a_dark_screen(folder: Path, tmp_path: Path, chromium: Callable[..., str]) -> None:
    shot = tmp_path / "shot.png"
    dark = "--blink-settings=preferredColorScheme=0"
    chromium(f"--screenshot={shot}", "--window-size=800,1500", dark, (folder / "summary.html").as_uri())
    with Image.open(shot) as picture:
        assert picture.size == (800, 1500)
        assert picture.convert("RGB").getpixel((2, 2)) == (13, 17, 23)


def test_the_page_prints(folder: Path, tmp_path: Path, chromium: Callable[..., str]) -> None:
    out = tmp_path / "page.pdf"
    chromium(f"--print-to-pdf={out}", "--no-pdf-header-footer", (folder / "summary.html").as_uri())
    assert 5 <= len(re.findall(rb"/Type\s*/Page\b", out.read_bytes())) <= 40


def test_pandoc_and_typst_make_a_pdf_of_it_and_nothing_leaves_its_page(folder: Path, tmp_path: Path) -> None:
    pypandoc = pytest.importorskip("pypandoc", reason="needs pandoc: pip install pypandoc_binary")
    typst = pytest.importorskip("typst", reason="needs typst: pip install typst")
    long = tmp_path / "long"
    long.mkdir()
    (long / "summary.md").write_text(summary_markdown(a_session(range(128, 128 * 13, 128))))
    for number, (made, fewest) in enumerate(((shutil.copytree(folder, tmp_path / "out"), 6), (long, 12))):
        words = [pypandoc.get_pandoc_path(), "summary.md", "-s", "-t", "typst", "-o", "summary.typ"]
        subprocess.run(words, cwd=made, timeout=60, check=True)
        source = (made / "summary.typ").read_text()
        assert source.count("#table(") == source.count("kind: table") - 1, "every table has its caption"
        typst.compile(str(made / "summary.typ"), output=str(tmp_path / f"page-{number}-{{p}}.png"), ppi=_PPI)
        pages = sorted(tmp_path.glob(f"page-{number}-*.png"))
        assert len(pages) >= fewest
        for page in pages:
            assert is_within_its_margins(page), page.name


def is_within_its_margins(page: Path) -> bool:
    """True if nothing is printed into the margins, which are 1.25 inches, but the page's number below."""
    with Image.open(page) as picture:
        width, height = picture.size
        margin, grey = round(1.15 * _PPI), picture.convert("L")
        margins = (
            (width - margin, 0, width, height),
            (0, 0, width, margin),
            (0, height - margin, round(0.45 * width), height),
            (0, 0, margin, height),
        )
        return all(grey.crop(box).getextrema() == (255, 255) for box in margins)
