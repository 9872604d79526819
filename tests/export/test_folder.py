"""The summary folder: complete, linked, readable offline in a browser, never over another folder."""

import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from pathlib import Path

import pytest

from cs336_tui.export import folder as folders
from cs336_tui.export.folder import Source, write_summary
from cs336_tui.export.writing.files import AlreadyThere, ExportError
from cs336_tui.session import store
from tests.export.grids import SMALL, by, grid_events
from tests.export.html_reader import Reader
from tests.samples import LAPTOP, write_log

GRID = by(pass_=["forward", "forward+backward"], warmup_steps=[0, 2])


def source(folder: Path, session: str = "sample", specs: object = GRID, **more: object) -> Source:
    log = write_log(folder / f"{session}.jsonl", grid_events(specs, session=session, **more))
    return Source(log, store.load(log))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Source]:
    base = tmp_path_factory.mktemp("summary")
    one = source(base)
    write_summary(base / "out", [one])
    return base / "out", one


def test_everything_is_there(written: tuple[Path, Source]) -> None:
    path, one = written
    assert {entry.name for entry in path.iterdir()} == {
        "summary.md", "summary.html", "tables", "figures", "session.jsonl",
    }  # fmt: skip
    assert (path / "session.jsonl").read_bytes() == one.log.read_bytes()
    names = {file.name for file in (path / "tables").iterdir()}
    assert {f"{name}.md" for name in ("results", "pivot-mean", "reference", "verdicts", "roofline")} <= names
    assert not {f"{name}.md" for name in ("forward-only", "min-max", "raw-steps", "by-mean")} & names
    assert {Path(name).suffix for name in names} == {".md"}
    assert {file.suffix for file in (path / "figures").iterdir()} == {".svg"}
    assert not list(path.parent.glob(".cs336-tui-*")), "nothing is left beside it"


def test_every_format_is_there_when_asked(tmp_path: Path) -> None:
    write_summary(tmp_path / "out", [source(tmp_path, "one", by([SMALL], pass_=["forward"]))], every_format=True)
    for suffix in ("md", "tex", "typ", "csv"):
        assert (tmp_path / "out" / "tables" / f"results.{suffix}").stat().st_size > 0
    names = {file.name for file in (tmp_path / "out" / "tables").iterdir()}
    assert not {"devices.md", "do_bench.md", "pivot-mean.md"} & names, "one cell has nothing side by side"
    assert (tmp_path / "out" / "figures" / "step-times.png").read_bytes().startswith(b"\x89PNG")


def test_every_link_of_the_text_leads_to_a_file(written: tuple[Path, Source]) -> None:
    path, _ = written
    targets = re.findall(r"\]\(([^)]+)\)", (path / "summary.md").read_text())
    assert len(targets) > 10
    assert all((path / target).is_file() for target in targets)


def test_the_page_needs_no_other_file_to_be_seen(written: tuple[Path, Source]) -> None:
    path, _ = written
    text = (path / "summary.html").read_text()
    assert not Reader(text).open
    assert "<script" not in text
    images = re.findall(r'src="([^"]*)"', text)
    assert len(images) == len(list((path / "figures").glob("*.svg")))
    for image in images:
        head, _, data = image.partition(",")
        assert head == "data:image/svg+xml;base64"
        ET.fromstring(b64decode(data))


def test_several_sessions_have_one_table_and_a_log_each(tmp_path: Path) -> None:
    small = by([SMALL], pass_=["forward"])
    box = source(tmp_path, "box", small)
    laptop = source(tmp_path, "laptop", by([SMALL], pass_=["forward"], device=["mps"]), environment=LAPTOP)
    write_summary(tmp_path / "out", [box, laptop])
    assert {entry.name for entry in (tmp_path / "out").glob("*.jsonl")} == {"box.jsonl", "laptop.jsonl"}
    text = (tmp_path / "out" / "summary.md").read_text()
    for words in ("# cs336-tui: 2 sessions", "### Session box", "### Session laptop", "Session laptop. Started "):
        assert words in text
    assert (
        "**Session:** laptop against box: step-time ratio 1, no interval: 4 steps are fewer than the 10 a side" in text
    )


def test_an_existing_folder_is_only_replaced_when_asked_and_only_a_summary(tmp_path: Path) -> None:
    one = source(tmp_path, specs=by([SMALL]))
    out = tmp_path / "out"
    out.mkdir()
    write_summary(out, [one])  # an empty folder may be filled
    (out / "tables" / "mine.md").write_text("an old table")
    with pytest.raises(AlreadyThere):
        write_summary(out, [one])
    assert (out / "tables" / "mine.md").exists()
    write_summary(out, [one], overwrite=True)
    assert not (out / "tables" / "mine.md").exists()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ExportError, match=r"holds other things \(thesis.tex\)"):
        write_summary(out, [one], overwrite=True)
    assert (out / "thesis.tex").read_text() == "years of work"


def test_the_log_of_another_session_is_kept_unless_forced(tmp_path: Path) -> None:
    small = by([SMALL], pass_=["forward"])
    box, laptop = source(tmp_path, "box", small), source(tmp_path, "laptop", small)
    out = tmp_path / "out"
    write_summary(out, [box])
    write_summary(out, [box, laptop], overwrite=True)  # the first log has another name now
    with pytest.raises(ExportError, match=r"holds the log of another session \(laptop.jsonl\)"):
        write_summary(out, [box], overwrite=True)
    assert (out / "laptop.jsonl").read_bytes() == laptop.log.read_bytes()
    write_summary(out, [box], overwrite=True, with_logs=True)
    assert [each.name for each in out.glob("*.jsonl")] == ["session.jsonl"]


@pytest.mark.parametrize("name", ["logs/run.jsonl", "logs"])
def test_a_file_or_a_folder_of_logs_is_never_replaced(tmp_path: Path, name: str) -> None:
    one = source(tmp_path, specs=by([SMALL]))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.jsonl").write_text("a log")
    with pytest.raises(ExportError):
        write_summary(tmp_path / name, [one], overwrite=True)
    assert (tmp_path / "logs" / "run.jsonl").read_text() == "a log"


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = source(tmp_path, specs=by([SMALL]))
    one.log.unlink()  # so that copying it fails, after tables and figures were made
    monkeypatch.setattr(folders, "drawings", lambda _: ())
    with pytest.raises(ExportError):
        write_summary(tmp_path / "out", [one])
    assert list(tmp_path.iterdir()) == []
