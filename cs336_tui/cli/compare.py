"""`cs336-tui compare` and `reference`: two sessions, or one cell of each, against each other; reference points beside a
session's cells, and a session's cells kept as reference points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from cs336_tui.analysis.comparison import Comparison, Side, overlap
from cs336_tui.analysis.comparison import compare as compared
from cs336_tui.analysis.fields import FIELDS, OWN, machine, shown_of
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, merge, pooled, results_of, title_of
from cs336_tui.analysis.published import points
from cs336_tui.analysis.reference import add_from, matching, remark_on, sentence
from cs336_tui.analysis.reference_profiles import profiles_said
from cs336_tui.cli.files import Destination, file_options, json_option, json_text
from cs336_tui.cli.flags import a_session, session_argument
from cs336_tui.cli.help import command, option_under
from cs336_tui.cli.streams import TERMINAL, laid_out
from cs336_tui.config.reading import is_file
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.subjects.comparison import SETTINGS, cell_title, comparison_table, doubt_of_pairs, pair_columns
from cs336_tui.export.writing.formats import answer
from cs336_tui.export.writing.tables import Table
from cs336_tui.export.writing.terminal import Notes, Part
from cs336_tui.export.writing.verdicts import trust_notes
from cs336_tui.session import store
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import UNKNOWN, counted
from cs336_tui.stats.ratio import Outcome

_OUTCOMES: Mapping[Outcome, str] = {
    "faster": "A takes less time, and the whole interval of A / B is below 1",
    "slower": "A takes more time, and the whole interval of A / B is above 1",
    "same": "the whole interval of A / B is within 1 ± {margin:g} %",
    "ambiguous": "neither can be said; more repeats (--repeats) narrow the interval",
}


@command("compare")
@a_session("a")
@a_session("b")
@json_option
@file_options("table")
def compare(a: str, b: str, session_dir: Path, *, to: Destination) -> str:
    """Compare the step times of A with those of B: ratio, its 95 % interval and the outcome.

    Each is a session (an id, a unique prefix of one, `last` or a path) or one cell of it, SESSION:N, counted from 1.

    \f
    Raises `LogError` or `click.UsageError` for a session or cell that there is not.
    """
    (a_path, a_number), (b_path, b_number) = (_find(text, session_dir) for text in (a, b))
    a_state = store.load(a_path)
    b_state = a_state if b_path == a_path else store.load(b_path)
    a_title, b_title = title_of(a_state), title_of(b_state)
    if a_title == b_title and a_path != b_path:
        a_title, b_title = a_path.stem, b_path.stem
    sides = (_cells(a_title, a_state, a_number), _cells(b_title, b_state, b_number))
    if overlap(*sides):
        session = a_state.started.session if a_state.started else a_path.stem
        one = session if a_number is None or b_number is None else f"cell {a_number} of {session}"
        raise click.UsageError(f"A and B are both {one}; name another, or two cells of one session as {b}:1 and {b}:2")
    return to.deliver(_render(compared(*sides), sides, to.format))


def _render(comparison: Comparison, sides: Sequence[Sequence[Result]], format_: str) -> str:
    if format_ == "json":
        return json_text(comparison)
    doubts = [f"{name}: {note}" for name, side in zip("AB", sides, strict=True) for note in trust_notes(side)]
    if format_ not in (TERMINAL, "table"):
        return answer([comparison_table(comparison, doubts=doubts)], format_)
    return laid_out(list(_parts(comparison, sides, doubts)), format_)


def _find(text: str, directory: Path) -> tuple[Path, int | None]:
    """The log that is meant, and the number of the one cell, from 1, where there is one."""
    session, colon, number = text.rpartition(":")
    is_cell = colon and number.isascii() and number.isdigit() and not is_file(Path(text))
    return (store.find(session, directory), int(number)) if is_cell else (store.find(text, directory), None)


def _cells(title: str, state: SessionState, number: int | None) -> tuple[Result, ...]:
    results = merge([(title, state)])
    if number is None:
        return results
    found = tuple(result for result in results if result.cell.cell == number - 1)
    if not found:
        there_are = f"has cells 1 to {len(results)}" if results else "has no cells"
        raise click.UsageError(f"cell {number}: session {title} {there_are}")
    return found


def _parts(comparison: Comparison, sides: Sequence[Sequence[Result]], doubts: Sequence[str]) -> Iterator[Part]:
    """The comparison in parts for a reader."""
    yield "A", comparison.a
    yield "B", comparison.b
    for row, note in enumerate((*comparison.notes, *comparison.mixed)):
        yield "" if row else "differs, A | B", note
    if comparison.pairs:
        yield _table(comparison, sides)
    else:
        yield "A and B have no cell in common."
    for name, cells in (("A", comparison.only_a), ("B", comparison.only_b)):
        if cells:
            yield "\n".join([f"only in {name}:", *(f"  {_what(cell)}" for cell in cells)])
    yield Notes((*(_reading(comparison) if comparison.pairs else ()), *doubts))


def _reading(comparison: Comparison) -> Iterator[str]:
    """The meaning of the table of pairs."""
    if shared := _shared(comparison):
        yield f"every pair, as in A: {shared}"
    yield f"times: ms per step, mean ± std; in brackets the {comparison.level * 100:g} % interval of A / B"
    methods = dict.fromkeys(pair.ratio.method for pair in comparison.pairs if pair.ratio)
    yield from (f"interval: {method}" for method in methods)
    for name, meaning in _OUTCOMES.items():
        if number := comparison.count(name):
            yield f"{name} {number}: {meaning.format(margin=comparison.margin * 100)}"


def _table(comparison: Comparison, sides: Sequence[Sequence[Result]]) -> Table:
    """The size, the other settings that vary, times, ratio and outcome; a column without any text is left out."""
    columns = pair_columns()
    columns["a"], columns["b"] = columns["a"]._replace(title="A (ms)"), columns["b"]._replace(title="B (ms)")
    columns["ratio"] = columns["ratio"]._replace(text=lambda pair: str(pair.ratio) if pair.ratio else UNKNOWN)
    columns["outcome"] = columns["outcome"]._replace(title="outcome")
    keys = (*SETTINGS, "a", "b", "ratio", "outcome", "differs")
    table = Table.of(comparison.pairs, [columns[key] for key in keys], record=lambda _: {}, doubt=doubt_of_pairs(sides))
    texts = {key: table.texts(key) for key in keys}
    gone = [key for key in SETTINGS if key != "size" and len(set(texts[key])) < 2]
    return table.without(*gone, *(key for key in keys if not any(texts[key])))


def _shared(comparison: Comparison) -> str:
    """Settings that all cells of A share and the table leaves out, in a line."""
    taken = {key: {shown_of(pair.a.spec, key) for pair in comparison.pairs} for key in SETTINGS[1:]}
    found = {key: shown.pop() for key, shown in taken.items() if len(shown) == 1}
    return ", ".join(
        f"{FIELDS[key].title} {shown}" for key, shown in found.items() if shown not in ("", OWN, FIELDS[key].usual)
    )


def _what(side: Side) -> str:
    """A cell without a partner, in a line."""
    runs = f" ({side.runs} runs)" if side.runs > 1 else ""
    ending = f": {side.note}" if side.note else ""
    return f"{cell_title(side.spec)}{runs}{ending}"


def _beside_published(results: Sequence[Result], state: SessionState) -> str:
    """A line for each measured cell of a session: its time here, those published and one's own, and what differs; then
    each peak of memory and each part's kernels, with a line for each published one. Raises `ReferenceFileError` for
    reference points that cannot be read."""
    rows = points()
    groups = grouped(measured(results), lambda result: (result.spec, machine(result)))

    lines = [] if groups else ["No cell has a result yet."]
    for (spec, _), cells in groups.items():
        summary = pooled(cells, ddof_of(cells))
        if summary and summary.mean_s is not None:
            lines.append(sentence(spec, summary.mean_s, matching(spec, cells[0].cell.in_force, rows)))
    for said in profiles_said([state], results, rows):
        lines += ["", said.here]
        lines += [f"  {there}{f' ({caveats})' if caveats else ''}" for there, caveats in said.there]
    return "\n".join([*lines, "", f"Mind that {remark_on(result.spec for result in results)}.", ""])


@command("reference")
@session_argument
@option_under(
    "Session", "--keep TITLE", "Only keep the session's results as reference points of your own, under TITLE."
)
@file_options("table")
def reference(session: str, keep: str | None, session_dir: Path, *, to: Destination) -> str:
    """Show published step times, peaks and kernels beside those of SESSION: as lines of text, or as tables."""
    if keep and to.file is not None:
        raise click.UsageError(f"-o {to.file}: --keep writes no table; leave one of the two out")
    state = store.load(store.find(session, session_dir))
    results = results_of(state)
    if keep:
        added = add_from(results, keep)
        kept = f"kept {counted(len(added.rows), 'reference point')} as {keep!r}"
        return "\n".join([kept, *(f"left out: {line}" for line in added.left_out)])
    if to.format == "table":
        return to.deliver(_beside_published(results, state))
    return to.deliver(answer(reference_tables(results, states=[state]), to.format))
