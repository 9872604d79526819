"""Tables in pandas' style, held byte for byte against what pandas 3.0 wrote of the same numbers."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result
from cs336_tui.cli.main import cli
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import ModelBuilt
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.formats import notes_text, pandas_text
from cs336_tui.export.writing.tables import Column, Table
from tests.export.grids import MEDIUM, SMALL, by, grid_events, merged
from tests.samples import a_spec, state_of, write_log

TIMES = {
    ("small", "forward"): (0.0741131, 0.07411, 0.0742219876),
    ("small", "forward+backward"): (0.220339, 0.22034567891, 0.2219),
    ("medium", "forward"): (0.245821, 0.244915123, 0.2449),
    ("medium", "forward+backward"): (1.0, 1.0, 1.0),
}
SPECS = by(pass_=["forward", "forward+backward"], warmup_steps=[0, 1], measure_steps=[3])
_BY_PANDAS = {
    name: [f"{each}\n" for each in text.strip().split("\n\n")]
    for name, _, text in (
        part.partition("\n")
        for part in (Path(__file__).parents[1] / "data" / "pandas-style.md").read_text().split("### ")[1:]
    )
}
"""Tables by layout; medium's forward+backward has no numbers."""


def times(spec: CellSpec) -> list[float]:
    """The first step is cold without a warm-up."""
    first, *others = TIMES[spec.size, spec.pass_]
    return [first if spec.warmup_steps else first * 3.1, *others]


def results(specs: list[CellSpec] = SPECS) -> tuple[Result, ...]:
    """The cells of medium's forward+backward ran out of memory."""
    oom = [at for at, spec in enumerate(specs) if (spec.size, spec.pass_) == ("medium", "forward+backward")]
    return merged(state_of(grid_events(specs, times=times, oom=oom)))


@pytest.mark.parametrize("layout", ["min-max", "by-mean", "raw-steps"])
def test_a_layout_is_what_pandas_writes(layout: str) -> None:
    assert pandas_text(layout_tables(results(), layout, published=True)) == _BY_PANDAS[layout][0]


def test_several_tables_stand_each_below_its_caption() -> None:
    cold, warm = _BY_PANDAS["forward-only"]
    text = pandas_text(layout_tables(results(), "forward-only", published=True))
    captions = [f"**Step times in seconds, warm-up {steps}**\n\n" for steps in (0, 1)]
    assert text == f"{captions[0]}{cold}\n{captions[1]}{warm}"


def test_without_an_index_too() -> None:
    assert pandas_text(layout_tables(results(), "min-max", published=True), index=False) == _BY_PANDAS["min-max"][1]


def test_devices_are_what_pandas_writes_and_have_parameters_as_published() -> None:
    specs = by([SMALL, MEDIUM], pass_=["forward", "forward+backward"], measure_steps=[3])
    specs = [spec for spec in specs if (spec.size, spec.pass_) != ("medium", "forward+backward")]
    queued = [a_spec(**MEDIUM, pass_="forward+backward", measure_steps=3)]
    events = grid_events([*specs, *queued], times=times)
    told = [each for each in events if getattr(each, "cell", None) != 3 and not isinstance(each, ModelBuilt)]
    found = merged(state_of(told))  # with the parameters that the sizes imply
    assert pandas_text(layout_tables(found, "devices")) == _BY_PANDAS["devices"][0]
    published = pandas_text(layout_tables(found, "devices", published=True))
    assert "| 120.95M      |" in published
    assert "| 412.94M      |" in published


def test_numbers_alone_have_one_type_as_in_pandas() -> None:
    warm = [each for each in results() if each.spec.warmup_steps][:1] * 2
    assert pandas_text([results_table(warm, columns=["context", "mean", "params"])]) == _BY_PANDAS["numbers only"][0]


@pytest.mark.parametrize(
    ("passes", "precisions", "contexts"),
    [
        (["forward"], ["fp32", "tf32", "bf16-mixed"], [128, 256]),
        (["forward"], ["fp32", "bf16-mixed"], [128]),
        (["forward+loss"], ["fp32"], [128]),
        (["forward+loss", "forward"], ["fp32"], [128]),
    ],
    ids=["what else tells cells apart", "mixed or not", "a forward with its loss is a forward", "but not beside one"],
)
def test_published_names(
    passes: list[str], precisions: list[str], contexts: list[int], snapshot: SnapshotAssertion
) -> None:
    specs = by([SMALL], pass_=passes, precision=precisions, context_length=contexts)
    (table,) = layout_tables(merged(state_of(grid_events(specs))), "by-mean", published=True)
    assert [*zip(table.texts("name"), table.texts("computation"), strict=True)] == snapshot


def test_markdown_of_a_name_cannot_break_the_table() -> None:
    table = Table.of(
        [{"name": "a|b\n<c>", "n": 1}],
        [Column("name", read=lambda row: row["name"]), Column("n", read=lambda row: row["n"])],
    )
    assert pandas_text([table]).splitlines()[2] == r"|  0 | a\|b \<c\> |   1 |"


def test_a_name_that_is_code_stays_as_it_is() -> None:
    table = Table.of(["_log_softmax", "lerp_", "a * b [c]"], [Column("name", left=True, read=lambda row: row)])
    assert [line[7:20].rstrip(" |") for line in pandas_text([table]).splitlines()[2:]] == [
        "_log_softmax",
        "lerp_",
        "a * b [c]",
    ]


def test_notes_of_several_tables_say_once_what_all_say() -> None:
    text = notes_text(layout_tables(results(), "forward-only", published=True))
    assert text.count("sample standard deviation") == 1
    assert text.count("medium · ctx 128 · forward+backward · fp32 · cuda:0: OOM") == 1


def test_the_command_writes_the_table_alone_and_the_notes_to_a_file(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", grid_events(SPECS, times=times, oom=[6, 7]))

    def said(*words: str) -> str:
        """On standard error, beside the table alone."""
        found = CliRunner().invoke(cli, ["export", str(log), "--layout", "min-max", "--style", "pandas", *words])
        assert (found.exit_code, found.stdout) == (0, _BY_PANDAS["min-max"][0])
        return found.stderr

    notes = tmp_path / "notes.md"
    said("--notes", str(notes))
    assert "OOM" in notes.read_text()
    assert "sample standard deviation" in notes.read_text()
    assert "--notes FILE" in said()
    assert said("--no-notes") == ""
