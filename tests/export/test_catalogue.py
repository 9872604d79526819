"""Everything that a session can be exported as, without the screen."""

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.config.axis import UserError
from cs336_tui.export.catalogue import (
    Choice,
    formats_of,
    last_choice,
    offers,
    remember,
    suited,
    text_of,
    usual_name,
    write,
)
from cs336_tui.export.folder import Source
from cs336_tui.export.writeups import LAYOUTS
from cs336_tui.export.writing.files import FORMATS, AlreadyThere
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import load
from tests.export.grids import SMALL, by, grid_events
from tests.samples import DEMO_LOG, write_log


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(DEMO_LOG, load(DEMO_LOG))


@pytest.fixture(scope="module")
def offered(source: Source) -> tuple[str, ...]:
    return tuple(offer.what for offer in offers(source.state))


def test_each_thing_is_offered_once_with_words(source: Source) -> None:
    found = list(offers(source.state))
    assert len({offer.what for offer in found}) == len(found)
    assert all(offer.title and offer.about and offer.group for offer in found)
    assert {f"layout {name}" for name in LAYOUTS} < {offer.what for offer in found}


@pytest.mark.parametrize("format_", FORMATS)
def test_every_offer_gives_a_text_in_every_format_or_says_in_one_line_why_not(
    source: Source, offered: tuple[str, ...], format_: str
) -> None:
    given, refused = [], []
    for what in offered:
        if format_ not in formats_of(what):
            continue
        try:
            text = text_of(Choice(what=what, format=format_), source.state)
        except UserError as error:
            text = str(error)
            refused.append(text)
        else:
            given.append(what)
            assert text.endswith("\n")
    assert all("\n" not in text and len(text) > 15 for text in refused)
    assert {"results", "pivot", "reference", "layout min-max", "layout by-mean", "report roofline"} <= {*given}


def test_an_empty_session_is_offered_too_and_says_so(tmp_path: Path) -> None:
    empty = Source(tmp_path / "none.jsonl", SessionState())
    for offer in offers(empty.state):
        choice = suited(Choice(), offer.what)
        if choice.what in ("results", "summary"):
            continue
        with pytest.raises(UserError):
            write(choice, empty, tmp_path / usual_name(choice, empty.state))
    assert not list(tmp_path.iterdir())


def test_figures_of_one_format_take_no_other_files_place(tmp_path: Path) -> None:
    log = write_log(tmp_path / "session.jsonl", grid_events(by([SMALL], pass_=["forward", "train-step"])))
    source, folder = Source(log, load(log)), tmp_path / "figures"
    choice = Choice(what="figures", format="png")
    write(choice, source, folder)
    drawn = [*folder.iterdir()]
    assert drawn
    assert all(file.suffix == ".png" and file.read_bytes().startswith(b"\x89PNG") for file in drawn)
    with pytest.raises(AlreadyThere):
        write(choice, source, folder)


def test_a_problem_is_written_with_its_figures_beside_it(source: Source, tmp_path: Path) -> None:
    choice = Choice(what="problem 2026/benchmarking_script", format="markdown")
    file = tmp_path / usual_name(choice, source.state)
    write(choice, source, file)
    text = file.read_text()
    assert text.startswith("# 2026 benchmarking_script: ")
    shown = re.findall(r"!\[[^]]*\]\(<([^>]+)>\)", text)
    assert shown
    assert all((tmp_path / each).is_file() for each in shown)
    assert {each.suffix for each in (tmp_path / f"{file.stem}-figures").iterdir()} == {".svg", ".pdf", ".png"}


def test_tables_without_notes_and_as_pandas_writes_them(source: Source) -> None:
    text = text_of(Choice(notes=False), source.state)
    assert all(line.startswith("|") for line in text.splitlines())
    text = text_of(Choice(what="layout min-max", pandas=True), source.state)
    assert re.search(r"\|    \| Model +\| Pass +\| +Warmup \| +Min \(s\) \|", text)
    assert "sample standard deviation" not in text
    latex = text_of(Choice(what="layout min-max", pandas=True, format="latex"), source.state)
    assert "sample standard deviation" in latex


def test_columns_unit_and_digits_are_those_of_the_command(source: Source, snapshot: SnapshotAssertion) -> None:
    chosen = Choice(columns="size, pass,mean", unit="s", digits=4, notes=False)
    each = (chosen, Choice(columns=chosen.columns, format="csv"), suited(chosen, "pivot"))
    assert [text_of(choice, source.state) for choice in each] == snapshot
    with pytest.raises(UserError, match="column colour: expected one of"):
        text_of(Choice(columns="colour"), source.state)


def test_a_speed_up_over_a_baseline(source: Source) -> None:
    choice = Choice(what="pivot", value="speedup", baseline="precision=fp32")
    assert "1 (baseline)" in text_of(choice, source.state)
    with pytest.raises(UserError, match="expected KEY=VALUE"):
        text_of(Choice(what="pivot", value="speedup", baseline="fp32"), source.state)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": "docx"}', '{"what": "figures", "format": "latex"}', '{"value": "worst"}']
)
def test_the_last_choice_is_kept_and_one_that_cannot_be_made_forgotten(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state" / "last-export.json"
    assert last_choice(file) is None
    remember(choice := Choice(what="layout min-max", format="typst", notes=False), file)
    assert last_choice(file) == choice
    file.write_text(text)
    assert last_choice(file) is None


def test_another_thing_keeps_the_format_if_it_has_it() -> None:
    assert suited(Choice(format="latex"), "pivot") == Choice(what="pivot", format="latex")
    assert suited(Choice(format="latex"), "figures").format == "all"
    assert suited(Choice(what="figures", format="svg"), "results").format == "markdown"
