"""The summary as people hand it in: in a real browser, light, dark and printed, and as a PDF by pandoc and typst."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from cs336_tui.events.events import Notice, ReportFinished, ReportStarted
from cs336_tui.export.folder import Source, write_summary
from cs336_tui.session.state import SessionState
from tests.export.grids import by, grid
from tests.made_kernels import a_kernel_report
from tests.samples import START, a_spec

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


def a_long_session() -> SessionState:
    """Twenty-four cells of long names, one out of memory, a profile with names of kernels that have no spaces."""
    state = grid(
        by(pass_=["forward", "forward+backward", "train-step"], precision=["fp32", "bf16-mixed"],
           context_length=[128, 4096]), oom=[17],
    )  # fmt: skip
    state.apply(ReportStarted(at=START, report=0, kind="kernels", spec=a_spec()))
    state.apply(ReportFinished(at=START, report=0, status="ok", content=a_kernel_report(a_spec())))
    state.apply(Notice(at=START, text="long/" * 40))
    state.commands.append("cs336-tui bench " + " ".join(f"--option-{number} some-value" for number in range(30)))
    return state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("documents")
    (base / "log.jsonl").write_bytes(b"")
    write_summary(base / "out", [Source(base / "log.jsonl", a_long_session())])
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
    title = re.search("<title>(.*?)</title>", dumped)
    assert title
    assert sorted(json.loads(title[1])) == [[width, width, 0, 0] for width in WIDTHS]


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
    shutil.copytree(folder, tmp_path / "out")
    words = [pypandoc.get_pandoc_path(), "summary.md", "-s", "-t", "typst", "-o", "summary.typ"]
    subprocess.run(words, cwd=tmp_path / "out", timeout=60, check=True)
    source = (tmp_path / "out" / "summary.typ").read_text()
    assert source.count("#table(") == source.count("kind: table") - 1, "every table has its caption"
    typst.compile(str(tmp_path / "out" / "summary.typ"), output=str(tmp_path / "page-{p}.png"), ppi=_PPI)
    pages = sorted(tmp_path.glob("page-*.png"))
    assert 8 <= len(pages) <= 40
    for page in pages:
        with Image.open(page) as picture:
            width, height = picture.size
            inside = 1.15 * _PPI  # typst's margins here are 1.25 inches
            grey = picture.convert("L")
            beside = grey.crop((round(width - inside), 0, width, height))
            above = grey.crop((0, 0, width, round(inside)))
            below = grey.crop((0, round(height - inside), round(0.45 * width), height))  # left of the page's number
            assert beside.getextrema() == above.getextrema() == below.getextrema() == (255, 255), page.name
