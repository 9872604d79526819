"""The pages of Compare: the pivot of the results, two sessions or two cells against each other, and cells that were
timed in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.ab import runs_in_turns, turns_of
from cs336_tui.analysis.comparison import Comparison, Pair, Side, compare
from cs336_tui.analysis.fields import FIELDS, PivotError, field_named, select, shown_of, values
from cs336_tui.analysis.grouping import label, telling
from cs336_tui.analysis.merge import Result, grouped
from cs336_tui.analysis.pivot import SPEEDUP, UNDOUBTED, VALUES, Key, Pivot, pivot, suggest
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import LANGUAGE_MODEL
from cs336_tui.export.pivot import default_caption, figure_text, substitute_of
from cs336_tui.export.subjects.comparison import exposed_words, pair_columns, turns_table
from cs336_tui.export.writing.tables import Column
from cs336_tui.export.writing.verdicts import doubt_notes, judged
from cs336_tui.tui import format
from cs336_tui.tui.format import CELL_KEYS, as_shown, cell_columns, told_variants
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.tabs.status import OUTCOMES
from cs336_tui.tui.widgets.columns import hidden_words, lay_out, shown_table, table_lines, without_shared
from cs336_tui.tui.widgets.lines import Line, Span, joined, line, paragraphs, wrapped
from cs336_tui.tui.widgets.rows import Page, message

_USUAL_BASELINES = ("precision", "device", "machine", "arch")
"""Fields whose values come first as baselines of a speed-up."""
_DOUBTED = " !"
_MEAN_ROOM, _RATIO_ROOM, _INTERVAL_ROOM = len("1178.80 !"), len("0.123"), len("[0.987, 1.012]")
"""Room for what comes as cells end: the columns of pairs stay where they are."""
_ALWAYS = ("size", "context", "pass", "precision")
_MOST_DOUBTS = 12
"""Most doubted sides with a line of their own."""
_NOT_ALONE = ("edition", "arch", "vocab")
"""Choices that an operation alone does not have."""
_NOTES = {"OOM": "▲ OOM", "failed": "✗ failed", "killed": "✗ killed", "skipped": "» skipped"}
_TITLE = ("Two cells in turns", "title")
_EXAMPLE = 'cs336-tui ab --a "--precision bf16-mixed" --b "--precision fp32"'


class PivotChoice(msgspec.Struct, frozen=True):
    """A pivot to make. Rows and columns None: those that fit the results. `baseline`: one ``field=value``, or empty for
    the first. `first_column`: the first column of figures in sight."""

    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    where: dict[str, str] = {}
    value: str = "mean"
    baseline: str = ""
    first_column: int = 0


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
    return msgspec.structs.replace(
        choice, rows=_words(rows), columns=_words(columns), where=where, baseline="", first_column=0
    )


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


class Doubts(NamedTuple):
    """The cells whose numbers are in doubt, and the reasons: a line each, or their number."""

    cells: frozenset[tuple[int, int]] = frozenset()
    notes: tuple[str, ...] = ()


def doubts_of(results: Sequence[Result]) -> Doubts:
    """The doubts about these cells; judging takes long, so call it on a thread."""
    doubted = (each.result for each in judged(results) if each.judgement.is_doubted)
    return Doubts(frozenset((result.source, result.cell.cell) for result in doubted), doubt_notes(results))


def pivot_page(choice: PivotChoice, results: Sequence[Result], width: int, doubts: Doubts | None = None) -> Page:
    """The table, or a line with the problem. Figures with a cell in doubt are marked, but no size: verdicts are about
    its steps."""
    try:
        found = make(choice, results)
        if doubts is None or choice.value in UNDOUBTED:
            return _page(found, choice, width)
        kept = select(results, choice.where)
        by = [FIELDS[key] for key in (*found.rows, *found.columns)]
        doubted = [result for result in kept if (result.source, result.cell.cell) in doubts.cells]
        keys = [tuple(field.show(result) for field in by) for result in doubted]
        rows = len(found.rows)
        marked = frozenset((key[:rows], key[rows:]) for key in keys)
        notes = doubts.notes if len(kept) == len(results) else doubts_of(kept).notes
        return _page(found, choice, width, marked, notes)
    except PivotError as error:
        shown = message(f"! {error}", width, "caution")
        choose = f"{key_name('compare.choose')}: choose rows, columns and cells"
        return Page((*shown.heading, (), line((choose, "muted"))))


def _page(
    found: Pivot,
    choice: PivotChoice,
    width: int,
    doubted: frozenset[tuple[Key, Key]] = frozenset(),
    why: Sequence[str] = (),
) -> Page:
    marks = {substitute_of(found): ""}  # the caption says it
    names = [FIELDS[key].title for key in found.rows]
    columns = tuple(Column(name, left=True) for name in names)
    shown = found.column_keys[min(choice.first_column, max(len(found.column_keys) - 1, 0)) :]
    columns += tuple(Column(" · ".join(key) or VALUES[found.value]) for key in shown)
    pads = {column: _DOUBTED if any((row, column) in doubted for row in found.row_keys) else "" for column in shown}

    def text(row: Key, column: Key) -> str:
        """A figure with its marks and the sign of doubt, or blanks of that width, so that figures align."""
        sign = _DOUBTED if (row, column) in doubted else " " * len(pads[column])
        return _text(found, row, column, marks) + sign

    texts = [(*row, *(text(row, column) for column in shown)) for row in found.row_keys]
    every = lay_out(columns, texts, 1 << 30)
    ends = accumulate(each + 2 for each in every.widths)
    kept = max(sum(end - 2 <= width for end in ends), min(len(names) + 1, len(columns)))
    layout = every._replace(kept=tuple(range(kept)))
    hidden = len(found.column_keys) - (kept - len(names))
    caption = [line((default_caption(found), "title"))]
    if found.baseline:
        caption.append(line((f"{key_name('compare.baseline')}: another baseline", "muted")))
    more = f"{hidden_words(hidden)} {key_name('compare.right')}" if hidden else ""
    heading = [*joined(caption, width, " · "), line((layout.heading, "muted"), (more, "muted"))]
    rows: list[Line] = [(Span(layout.row(row)),) for row in texts]
    # Dimensions follow from the size, the session is in the heading.
    is_alone = found.fixed.get("workload", LANGUAGE_MODEL) != LANGUAGE_MODEL
    without = ("session", "seed", *(_NOT_ALONE if is_alone else ()))
    told = {key: at for key, at in found.fixed.items() if FIELDS[key].kind != "model" and key not in without}
    fixed = ", ".join(f"{FIELDS[key].title} {value}" for key, value in told.items())
    rows += [(), *wrapped(f"All cells: {fixed}.", width, "muted", "  ")] if fixed else []
    explained = [f"{mark} {sign}" for mark, sign in marks.items() if sign]
    if found.value in ("mean", "std"):
        explained.insert(0, f"std divides by n - {found.ddof}; repeats of a cell are pooled.")
    rows += paragraphs(explained, width, "muted", "  ")
    cautions = [*(f"! in doubt: {note}" for note in why), *(f"! {note}" for note in found.notes)]
    rows += paragraphs(cautions, width, "caution", "  ")
    return Page(tuple(heading), tuple(rows))


def _text(found: Pivot, row: Key, column: Key, marks: dict[str, str]) -> str:
    figure = found.figure(row, column)
    if figure is None:
        return ""
    for mark in figure.marks:
        marks.setdefault(mark, "¹²³⁴⁵⁶⁷⁸⁹"[len(marks) - 1] if len(marks) <= 9 else f"({len(marks)})")
    note = _NOTES.get(figure.note, figure.note or format.NOT_YET)
    text = note if figure.value is None else figure_text(found, figure)
    return text + "".join(marks[mark] for mark in figure.marks)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


class _Doubt(NamedTuple):
    """The reason why a side of a pair is in doubt; a sentence for each doubted run."""

    name: str
    verdicts: tuple[str, ...]
    sentences: tuple[str, ...]


_Doubts = Mapping[CellSpec, _Doubt]
"""The doubts about one side, by spec."""


def pairs_page(a: Sequence[Result], b: Sequence[Result], width: int, columns_page: int = 0) -> Page:
    """A row per pair with ratio, interval and outcome; then doubted sides, cells without a partner, and differences.
    `columns_page`: the page of columns, counted in a circle. Judging the cells takes long: call it on a thread."""
    found = compare(a, b)
    doubts = _doubts_of(a), _doubts_of(b)
    columns = _columns(found, doubts)
    marks = [OUTCOMES[pair.outcome] for pair in found.pairs]
    settings = [column.key for column in columns[1:] if column.key in FIELDS and len(found.pairs) > 1]
    table, shared = without_shared(shown_table(found.pairs, columns), settings)
    drawn = table_lines(table, width, marks, page=columns_page, binding="compare.columns")
    counted = " · ".join(f"{found.count(of)} {of}" for of in OUTCOMES if found.count(of))
    heading = (
        line(("A ", "strong"), (format.plain(found.a), "title"), ("  B ", "strong"), (format.plain(found.b), "title")),
        line((f"A against B: {counted or 'no pairs'}", "strong")),
        *(wrapped(f"all pairs: {shared}", width, "muted") if shared else ()),
        *drawn.heading,
    )
    details = {place: "\n".join(_details(pair, doubts)) for place, pair in enumerate(found.pairs)}
    return Page(heading, (*drawn.rows, (), *_below(found, doubts, width)), details)


def _columns(found: Comparison, doubts: Sequence[_Doubts]) -> list[Column[Pair]]:
    exported = pair_columns(digits=".3f", unknown=format.NOT_YET)
    variants = told_variants(side.spec for pair in found.pairs for side in (pair.a, pair.b))
    ranks = {"context": 1, "batch": 1, "precision": 1, "device": 1, "warmup": 1}  # those that are alike go first
    named = cell_columns(
        lambda pair: pair.a.spec, ranks, as_shown(variants), (*CELL_KEYS, "warmup"), lambda spec: spec.size_label
    )

    def both(column: Column[Pair]) -> Column[Pair]:
        def text(pair: Pair) -> str:
            return " | ".join(dict.fromkeys(shown_of(side.spec, column.key) for side in (pair.a, pair.b)))

        return column._replace(text=text)

    def mean(name: str, doubted: _Doubts) -> Column[Pair]:
        of = attrgetter(name)
        pad = " " * len(_DOUBTED) if any(of(pair).spec in doubted for pair in found.pairs) else ""  # figures align

        def text(pair: Pair) -> str:
            side: Side = of(pair)
            shown = format.ms(side.summary.mean_s, side.summary.std_s) if side.summary else side.note
            return shown + (_DOUBTED if side.spec in doubted else pad)

        return Column(name, f"{name.upper()} ms", rank=3, text=text, room=_MEAN_ROOM)

    return [
        *(both(column) if column.key in (*variants, "device") else column for column in named),
        *map(mean, "ab", doubts),
        exported["ratio"]._replace(room=_RATIO_ROOM),
        exported["interval"]._replace(left=True, rank=2, room=_INTERVAL_ROOM),
    ]


def _doubts_of(results: Sequence[Result]) -> _Doubts:
    keys = (*_ALWAYS, *telling(results, but=(*_ALWAYS, "machine", "session")))
    by_spec = grouped(filter(lambda each: each.judgement.is_doubted, judged(results)), lambda each: each.result.spec)
    return {
        spec: _Doubt(
            label(found[0].result, keys).replace("context ", "ctx "),
            tuple(dict.fromkeys(check.name for each in found for check in each.judgement.doubts)),
            tuple(each.judgement.sentence for each in found),
        )
        for spec, found in by_spec.items()
    }


def _below(found: Comparison, doubts: Sequence[_Doubts], width: int) -> list[Line]:
    """Sides in doubt, cells without a partner, and what the two sides differ in."""
    doubted = [
        f"! in doubt: {name} {doubt.name}: {', '.join(doubt.verdicts)}"
        for name, of in zip("AB", doubts, strict=True)
        for pair in found.pairs
        if (doubt := of.get((pair.a if name == "A" else pair.b).spec))
    ]
    if len(doubted) > _MOST_DOUBTS:
        more = len(doubted) - _MOST_DOUBTS
        doubted[_MOST_DOUBTS:] = [f"! in doubt: {more} more side{'s' * (more > 1)}, marked above"]
    alone = [f"only in {name}: {s.spec.title}" for name, of in (("A", found.only_a), ("B", found.only_b)) for s in of]
    differ = [*(f"! differs everywhere: {note}" for note in found.notes), *(f"! {note}" for note in found.mixed)]
    margin = (
        f"A / B: ratio of mean step times, with its {found.level * 100:g} % CI; below 1, A is faster. The same: the "
        f"whole interval is within {found.margin * 100:g} % of 1. {key_name('compare.choose')}: why."
    )
    return [
        *paragraphs(doubted, width, "caution", "  "),
        *paragraphs(alone, width, "muted", "  "),
        *paragraphs(differ, width, "caution", "  "),
        *wrapped(margin, width, "muted", "  "),
    ]


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
        if doubt := of.get(side.spec):
            yield from (f"! {name} in doubt: {sentence}" for sentence in doubt.sentences)


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


def _without(results: Sequence[Result], width: int) -> Iterator[Line]:
    from cs336_tui.analysis.effects import NO_COMMUNICATION
    from cs336_tui.export.subjects.data_parallel import in_turns_command

    yield from wrapped(
        "No cells of this session ran in turns. Turns alternate two cells step by step, so that drift cancels:",
        width,
        "muted",
    )
    yield from wrapped(_EXAMPLE, width, "strong", "  ")
    shared = (each.spec for each in results if each.spec.ranks > 1 and each.spec.parallel != NO_COMMUNICATION)
    if (spec := next(shared, None)) and spec.pass_ == "train-step":
        yield ()
        yield from wrapped(f"How long a step of {spec.title} waits for communication:", width, "muted", "  ")
        yield from wrapped(in_turns_command(spec), width, "strong", "  ")
