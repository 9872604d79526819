"""The pages of Compare: the pivot of the results, two sessions or two cells against each other, and cells that were
timed in turns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from cs336_tui.analysis.ab import runs_in_turns, turns_of
from cs336_tui.analysis.comparison import Comparison, Pair, compare
from cs336_tui.analysis.effects import NO_COMMUNICATION
from cs336_tui.analysis.fields import PivotError, field_named, owner, select, shown_of, values
from cs336_tui.analysis.grouping import shown
from cs336_tui.analysis.merge import Result, grouped, without_turns
from cs336_tui.analysis.pivot import SPEEDUP, UNDOUBTED, Key, Pivot, pivot, suggest
from cs336_tui.config.axis import names_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.pivot import figures_table, pivot_table
from cs336_tui.export.subjects.comparison import exposed_words, pair_columns, pair_notes, turns_table
from cs336_tui.export.writing.tables import Table
from cs336_tui.export.writing.verdicts import doubt_notes, judged, trust_notes
from cs336_tui.tui import format
from cs336_tui.tui.format import told_variants
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.tabs.status import OUTCOMES
from cs336_tui.tui.widgets.columns import on_screen, table_lines, without_shared
from cs336_tui.tui.widgets.lines import Line, Span, bar, joined, line, paragraphs, wrapped
from cs336_tui.tui.widgets.rows import Page, message

_USUAL_BASELINES = ("precision", "device", "machine", "arch")
"""Fields whose values come first as baselines of a speed-up."""
_DOUBTED = " !"
_SHADES = "█▓▒░"
_PAIR_RANKS = {"context": 3, "batch": 3, "precision": 3, "device": 3, "warmup": 3, "interval": 2, "a": 1, "b": 1}
"""Settings go first where there is no room for all."""
_BAR_COLUMNS = 14
_BARS_FROM = 96
"""Width from which a pair has a bar of its speed-up."""
_SIGNS = {"OOM": "▲", "failed": "✗", "killed": "✗", "skipped": "»"}
"""Of the endings that stand in place of a figure."""
_TITLE = ("Two cells in turns", "title")
_EXAMPLE = 'cs336-tui ab --a "--precision bf16-mixed" --b "--precision fp32"'


class PivotChoice(msgspec.Struct, frozen=True):
    """A pivot to make. Rows and columns None: those that fit the results. `baseline`: one ``field=value``, or empty for
    the first."""

    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    where: dict[str, str] = {}
    value: str = "mean"
    baseline: str = ""


def as_text(choice: PivotChoice, results: Sequence[Result]) -> str:
    """The choice as it is typed: ``size,precision by pass where context=512 and size=small``."""
    rows, columns = rows_and_columns(choice, results)
    where = " and ".join(f"{field}={value}" for field, value in choice.where.items())
    return f"{','.join(rows)} by {','.join(columns)}" + (f" where {where}" if where else "")


def from_text(text: str, choice: PivotChoice) -> PivotChoice:
    """The inverse of `as_text`; value and level are those of `choice`. Raises `PivotError`."""
    table, _, conditions = f" {text} ".partition(" where ")
    rows, by, columns = table.partition(" by ")
    if not by:
        raise PivotError(f"{text.strip() or '(empty)'}: expected rows by columns, such as: size by pass")
    where: dict[str, str] = {}
    for condition in conditions.split(" and ") if conditions.strip() else ():
        field, equals, value = condition.strip().partition("=")
        if not (field and equals and value):
            raise PivotError(f"where {condition.strip()}: expected field=value, such as precision=fp32")
        where[field.strip()] = value.strip()
    return msgspec.structs.replace(choice, rows=names_of(rows), columns=names_of(columns), where=where, baseline="")


def rows_and_columns(choice: PivotChoice, results: Sequence[Result]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The chosen rows and columns, else those that fit the results."""
    if choice.rows is not None and choice.columns is not None:
        return choice.rows, choice.columns
    return suggest(results)


def baselines(choice: PivotChoice, results: Sequence[Result]) -> tuple[str, ...]:
    """The possible baselines of speed-ups, as ``field=value``. Raises `PivotError`."""
    kept = select(results, choice.where)
    rows, columns = rows_and_columns(choice, kept)
    keys = sorted((field_named(name).key for name in (*columns, *rows)), key=lambda key: key not in _USUAL_BASELINES)
    return tuple(f"{key}={value}" for key in keys for value in values(kept, key))


def make(choice: PivotChoice, results: Sequence[Result]) -> Pivot:
    """The chosen pivot. Raises `PivotError`."""
    kept = select(results, choice.where)
    rows, columns = rows_and_columns(choice, kept)
    baseline: dict[str, str] | None = None
    if choice.value == SPEEDUP:
        known = baselines(choice, kept)
        wanted = choice.baseline if choice.baseline in known else next(iter(known), "")
        field, _, value = wanted.partition("=")
        baseline = {field: value} if wanted else None
    return pivot(kept, rows, columns, choice.value, baseline)


def pivot_page(
    choice: PivotChoice, results: Sequence[Result], width: int, columns_page: int = 0, *, judges: bool = False
) -> Page:
    """The chosen pivot, or a line with the problem. `columns_page`: the page of columns, counted in a circle. `judges`:
    figures with a cell in doubt are marked, and notes say why and where they come from. That takes long: call it on a
    thread."""
    try:
        found, (kept, _) = make(choice, results), without_turns(select(results, choice.where))
    except PivotError as error:
        problem = message(f"! {error}", width, "caution")
        choose = f"{key_name('compare.choose')}: choose rows, columns and cells"
        return Page((*problem.heading, (), line((choose, "muted"))))
    exported = pivot_table(found, kept) if judges else figures_table(found)
    is_doubtful = judges and found.value not in UNDOUBTED  # verdicts are about steps, not about sizes
    signed = dict.fromkeys((column.key for column in exported.columns[len(found.rows) :]), _signed)
    if any(map(owner, (*found.rows, *found.columns))):
        exported = _shaded(found, exported)
    table = _marked(on_screen(exported, shows=signed), _in_doubt(found, kept) if is_doubtful else ())
    named = len(found.rows)
    turning = _turning(table, named)
    drawn = table_lines(turning, width, page=columns_page, binding="compare.right", named=named)
    caption = [line((table.caption, "title"))]
    if found.baseline:
        caption.append(line((f"{key_name('compare.baseline')}: another baseline", "muted")))
    doubts = doubt_notes(kept) if is_doubtful else ()
    cautions = dict.fromkeys(found.notes, "! ") | dict.fromkeys(doubts, "! in doubt: ")
    untold = (*cautions, *(trust_notes(kept) if judges else ()))  # what was not observable is in the files alone
    notes = [
        *paragraphs((sign + note for note, sign in cautions.items()), width, "caution", "  "),
        *paragraphs((note for note in table.footnotes if note not in untold), width, "muted", "  "),
    ]
    return Page((*joined(caption, width, " · "), *drawn.heading), (*drawn.rows, (), *notes))


def _shaded(found: Pivot, table: Table) -> Table:
    """The table as a heat map, a shade behind each figure: the fuller, the smaller; of speed-ups the larger."""
    sign = -1 if found.value == SPEEDUP else 1
    known = sorted(sign * each.value for each in found.figures.values() if each.value is not None)

    def shade(row: Key, column: Key) -> str:
        each = found.figure(row, column)
        if each is None or each.value is None:
            return "  "
        return f" {_SHADES[bisect_left(known, sign * each.value) * len(_SHADES) // len(known)]}"

    split = len(found.rows)
    rows = tuple(
        (*texts[:split], *(text + shade(row, key) for text, key in zip(texts[split:], found.column_keys, strict=True)))
        for texts, row in zip(table.rows, found.row_keys, strict=True)
    )
    return msgspec.structs.replace(table, rows=rows)


def _signed(text: str) -> str:
    """A cell's ending with its sign; a figure as it is."""
    sign = _SIGNS.get(text.partition(" ")[0])
    return f"{sign} {text}" if sign else text


def _in_doubt(found: Pivot, results: Sequence[Result]) -> frozenset[tuple[int, int]]:
    """The places, by row and column of its table, of figures with a cell in doubt; of a cell whose device or machine
    became known since the pivot was made there is none."""
    split = len(found.rows)
    rows, columns = (
        {key: place for place, key in enumerate(keys, first)}
        for first, keys in ((0, found.row_keys), (split, found.column_keys))
    )
    doubted = (each.result for each in judged(results) if each.judgement.is_doubted)
    keys = (shown(result, (*found.rows, *found.columns)) for result in doubted)
    return frozenset(
        (rows[key[:split]], columns[key[split:]]) for key in keys if key[:split] in rows and key[split:] in columns
    )


def _marked(table: Table, doubted: Collection[tuple[int, int]]) -> Table:
    """The table with a sign behind what is in doubt, by row and column, and blanks behind the rest of such a column, so
    that figures align."""
    ends = {column: " " * len(_DOUBTED) for _, column in doubted}
    rows = tuple(
        tuple(
            text + (_DOUBTED if (row, column) in doubted else ends.get(column, "")) for column, text in enumerate(texts)
        )
        for row, texts in enumerate(table.rows)
    )
    return msgspec.structs.replace(table, rows=rows)


def _turning(table: Table, named: int) -> Table:
    """The table with columns of figures that go to further pages from the right; the first ones, which are `named`,
    stand on every page."""
    columns = tuple(
        column._replace(rank=min(place, 1), room=max(map(len, table.texts(column.key)), default=1))
        for place, column in enumerate(table.columns[named:])
    )
    return msgspec.structs.replace(table, columns=(*table.columns[:named], *columns))


_Doubts = Mapping[CellSpec, Sequence[str]]
"""The doubts about one side, by spec: a sentence for each doubted run."""


def pairs_page(a: Sequence[Result], b: Sequence[Result], width: int, columns_page: int = 0) -> Page:
    """A row per pair with ratio, interval and outcome; then doubted sides, cells without a partner, and differences.
    `columns_page`: the page of columns, counted in a circle. Judging the cells takes long: call it on a thread."""
    found = compare(a, b)
    doubts = _doubts_of(a), _doubts_of(b)
    marks = _outcomes(found.pairs, width)
    table, settings = _pairs_table(found, doubts)
    table, shared = without_shared(table, settings if len(found.pairs) > 1 else ())
    drawn = table_lines(table, width, marks, page=columns_page, binding="compare.columns")
    counted = " · ".join(f"{found.count(of)} {of}" for of in OUTCOMES if found.count(of))
    heading = (
        line(("A ", "strong"), (format.plain(found.a), "title"), ("  B ", "strong"), (format.plain(found.b), "title")),
        line(
            (f"A against B: {counted or 'no pairs'}", "strong"),
            *([(f" · {key_name('compare.choose')}: why", "muted")] if found.pairs else ()),
        ),
        *(wrapped(f"all pairs: {shared}", width, "muted") if shared else ()),
        *drawn.heading,
    )
    details = {place: "\n".join(_details(pair, doubts)) for place, pair in enumerate(found.pairs)}
    doubted = (f"! in doubt: {name} {note}" for name, side in (("A", a), ("B", b)) for note in doubt_notes(side))
    notes = paragraphs(doubted, width, "caution", "  ")
    for note in pair_notes(found):
        differs = any(what in note for what in (*found.notes, *found.mixed))
        notes += wrapped(f"! {note}" if differs else note, width, "caution" if differs else "muted", "  ")
    return Page(heading, (*drawn.rows, (), *notes), details)


def _outcomes(pairs: Sequence[Pair], width: int) -> list[Span]:
    """The outcome of each pair, with a bar of the speed-up of A over B in a wide pane."""
    speedups = [1 / pair.ratio.ratio if pair.ratio else 0.0 for pair in pairs]
    most, room = max(speedups, default=0.0), max(len(mark.text) for mark in OUTCOMES.values())
    marks = []
    for pair, speedup in zip(pairs, speedups, strict=True):
        mark = OUTCOMES[pair.outcome]
        drawn = f"{mark.text:<{room}}  {bar(speedup / most, _BAR_COLUMNS)} {speedup:.2f}×" if speedup else mark.text
        marks.append(Span(drawn if width >= _BARS_FROM else mark.text, mark.role))
    return marks


def _pairs_table(found: Comparison, doubts: Sequence[_Doubts]) -> tuple[Table, Sequence[str]]:
    """A row per pair, with the sign of doubt behind a side's mean; and the settings that may be the same for all."""
    columns = pair_columns(digits=".3f")
    variants = told_variants(side.spec for pair in found.pairs for side in (pair.a, pair.b))
    settings = ("context", "batch", "pass", "precision", *variants, "device", "warmup")
    for key in (*variants, "device"):  # in which the sides may differ
        columns[key] = columns[key]._replace(text=partial(_of_both, key))
    keys = ("size", *settings, "a", "b", "ratio", "interval")
    made = Table.of(found.pairs, [columns[key] for key in keys], record=lambda _: {})
    doubted = {
        (row, keys.index(name))
        for row, pair in enumerate(found.pairs)
        for name, side, of in zip("ab", (pair.a, pair.b), doubts, strict=True)
        if side.spec in of
    }
    means = dict.fromkeys("ab", format.without_std)
    table = on_screen(made, _PAIR_RANKS, titles={"a": "A ms", "b": "B ms"}, shows=means)
    return _marked(table, doubted), settings


def _of_both(key: str, pair: Pair) -> str:
    return " | ".join(dict.fromkeys(shown_of(side.spec, key) for side in (pair.a, pair.b)))


def _doubts_of(results: Sequence[Result]) -> _Doubts:
    doubted = (each for each in judged(results) if each.judgement.is_doubted)
    by_spec = grouped(doubted, lambda each: each.result.spec)
    return {spec: [each.judgement.sentence for each in found] for spec, found in by_spec.items()}


def _details(pair: Pair, doubts: Sequence[_Doubts]) -> Iterator[str]:
    sides = tuple(zip("AB", (pair.a, pair.b), doubts, strict=True))
    for name, side, _ in sides:
        yield f"{name}: {side.spec.title} on {side.machine}, {side.runs} run{'s' * (side.runs != 1)}"
    yield ""
    yield pair.explanation
    if pair.ratio:
        yield f"The interval: {pair.ratio.method}."
    yield from (f"differs: {what}" for what in pair.differs)
    for name, side, of in sides:
        yield from (f"! {name} in doubt: {sentence}" for sentence in of.get(side.spec, ()))


def turns_page(results: Sequence[Result], width: int, columns_page: int = 0) -> Page:
    """All that ran in turns, a part each; `columns_page` as of `pairs_page`. Judging the cells takes long: call it on a
    thread."""
    runs = runs_in_turns(results)
    if not runs:
        return Page((line(_TITLE),), tuple(_without(results, width)))
    rows = [row for rounds in runs for row in (*_part(rounds, width, columns_page), ())]
    return Page((line(_TITLE, (" · A / B: below 1 A is faster", "muted")),), tuple(rows[:-1]))


def _part(rounds: Sequence[tuple[Result, Result]], width: int, columns_page: int) -> Iterator[Line]:
    turns = turns_of(rounds)
    table = turns_table(turns, [each for both in rounds for each in both])
    for name, side in (("A", turns.a), ("B", turns.b)):
        yield from wrapped(f"{name}: {format.plain(side.spec.title)}", width, "title", "   ")
    if turns.exposed:
        words = exposed_words(turns.exposed, turns.level)
        yield from wrapped(f"{words[0].upper()}{words[1:]}.", width, "strong", "  ")
    mark = OUTCOMES[turns.outcome]
    yield from wrapped(f"{mark.text.split()[0]} {turns.explanation}", width, mark.role, "  ")
    roles = ["text"] * (len(table.rows) - 1) + ["strong"]
    yield from table_lines(table, width, roles=roles, page=columns_page, binding="compare.columns").lines
    yield from wrapped(f"Differs, A | B: {'; '.join(turns.differs) or 'nothing'}.", width, "muted", "  ")


def of_ranks(results: Sequence[Result]) -> CellSpec | None:
    """The first cell whose step may wait for communication between ranks."""
    steps = (each.spec for each in results if each.spec.ranks > 1 and each.spec.pass_ == "train-step")
    return next((spec for spec in steps if spec.parallel != NO_COMMUNICATION), None)


def _without(results: Sequence[Result], width: int) -> Iterator[Line]:
    from cs336_tui.export.subjects.data_parallel import in_turns_command

    yield from wrapped(
        "No cells of this session ran in turns. Turns alternate two cells step by step, so that drift cancels:",
        width,
        "muted",
    )
    yield from wrapped(_EXAMPLE, width, "strong", "  ")
    if spec := of_ranks(results):
        yield ()
        measures = f"How long a step of {spec.title} waits for communication, its exposed communication:"
        yield from wrapped(f"{measures} {key_name('compare.turn')} measures it here, or", width, "muted", "  ")
        yield from wrapped(in_turns_command(spec), width, "strong", "  ")
