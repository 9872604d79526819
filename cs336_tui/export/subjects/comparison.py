"""Cells against each other, as tables: pairs of two sessions, two cells in turns, results that agree or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.ab import Exposed, Round, Turns
from cs336_tui.analysis.agreement import COMPARED, Agreement, agreement
from cs336_tui.analysis.comparison import Comparison, Pair, Side
from cs336_tui.analysis.fields import VARIANTS, shown_of, warmup_value
from cs336_tui.analysis.merge import Result, grouped
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.reports import AgreementReport
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writing.footnotes import provenance_notes, std_kind
from cs336_tui.export.writing.tables import (
    Column,
    Source,
    Table,
    Value,
    attributes,
    cell_record,
    ratio_record,
    summary_record,
)
from cs336_tui.export.writing.verdicts import doubt_word
from cs336_tui.stats.differences import Errors
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation, counted, tenth_percent, two_digit_percent
from cs336_tui.stats.ratio import FROM_ONE_ROUND, LEVEL
from cs336_tui.stats.summaries import Summary

SETTINGS = ("size", "context", "batch", "pass", "precision", "device", *VARIANTS, "warmup", "steps")
"""Fields of a pair that a table may show, those of A."""
RESULTS = {True: "same", False: "differs", None: "not compared"}
"""The words for an agreement."""
_AGREEMENT_MEANS = (
    "errors are norms of differences over norms, of the worst range of positions and of the worst parameter",
    "differs: by more than rounding in the coarser of both precisions explains",
    f"compared: {COMPARED}",
)


def pair_columns(notation: Notation = MILLISECONDS, *, digits: str = ".4g") -> dict[str, Column[Pair]]:
    """Every column that a comparison may have, by key; `digits` are of the ratio and its interval."""

    def setting(key: str) -> Column[Pair]:
        exported = COLUMNS[key]
        return Column(
            key, exported.title, exported.left, text=lambda pair: shown_of(pair.a.spec, key), short=exported.short
        )

    columns: tuple[Column[Pair], ...] = (
        Column("cell", left=True, text=lambda pair: cell_title(pair.a.spec)),
        *map(setting, SETTINGS),
        Column("a", f"A ± std ({notation.symbol})", text=lambda pair: side_mean(pair.a, notation)),
        Column("b", f"B ± std ({notation.symbol})", text=lambda pair: side_mean(pair.b, notation)),
        Column("ratio", "A / B", text=lambda pair: f"{pair.ratio.ratio:{digits}}" if pair.ratio else UNKNOWN),
        Column("interval", text=lambda pair: pair.ratio.bounds(digits) if pair.ratio else ""),
        Column("outcome", "A is", left=True, text=lambda pair: pair.outcome if pair.ratio else ""),
        Column("differs", "differs, A | B", left=True, text=lambda pair: "; ".join(pair.differs)),
    )
    return {column.key: column for column in columns}


def comparison_table(
    comparison: Comparison,
    *,
    notation: Notation = MILLISECONDS,
    caption: str = "",
    doubts: Sequence[str] = (),
    sides: Sequence[Sequence[Result]] = (),
) -> Table:
    """Both sides' mean ± std, their ratio with its interval and the outcome; below, `doubts` about the numbers
    of either and what differs between the sides. `sides` are the cells of A and of B, for the doubt of a row."""
    columns = pair_columns(notation)
    return Table.of(
        comparison.pairs,
        [columns[key] for key in ("cell", "a", "b", "ratio", "interval", "outcome")],
        record=_record,
        caption=caption or f"Step times of A ({comparison.a}) over those of B ({comparison.b})",
        footnotes=(*doubts, *pair_notes(comparison)),
        label="comparison",
        doubt=doubt_of_pairs(sides),
    )


def doubt_of_pairs(sides: Sequence[Sequence[Result]]) -> Callable[[Pair], str]:
    """The doubt of a pair of these two sides' cells, in a word; empty if there is none."""
    specs = [grouped(side, lambda result: result.spec) for side in sides]

    def doubt(pair: Pair) -> str:
        return doubt_word(
            result for known, side in zip(specs, (pair.a, pair.b), strict=False) for result in known.get(side.spec, ())
        )

    return doubt


def side_mean(side: Side, notation: Notation) -> str:
    """Mean ± std of a side, or why there is none."""
    return notation.mean_and_std(side.summary) if side.summary else side.note


def side_record(name: str, side: Side, *more: str) -> dict[str, Value]:
    """The steps of a side, its runs, `more` of its fields, and why it has no steps."""
    runs = attributes(side, "runs", *more, prefix=f"{name}_")
    return summary_record(name, side.summary) | runs | {f"{name}_note": side.note or None}


def _record(pair: Pair) -> dict[str, Value]:
    record = cell_record(pair.a.spec) | {"warmup": warmup_value(pair.a.spec)}
    record |= side_record("a", pair.a) | side_record("b", pair.b)
    return record | ratio_record(pair.ratio, "ratio") | {"verdict": pair.outcome, "differs": "; ".join(pair.differs)}


def pair_notes(comparison: Comparison) -> Iterator[str]:
    """The meaning of the figures, what differs between the sides, and cells without a partner."""
    yield f"interval: {comparison.level * 100:g} %, of the ratio of the means"
    yield from dict.fromkeys(f"method: {pair.ratio.method}" for pair in comparison.pairs if pair.ratio)
    yield outcome_note(comparison.margin)
    yield from std_notes(side for pair in comparison.pairs for side in (pair.a, pair.b))
    yield from (f"in every pair, A | B: {note}" for note in comparison.notes)
    yield from (
        f"{cell_title(pair.a.spec)}, A | B: {'; '.join(pair.differs)}" for pair in comparison.pairs if pair.differs
    )
    yield from comparison.mixed
    for name, alone in (("A", comparison.only_a), ("B", comparison.only_b)):
        if titles := [cell_title(side.spec) for side in alone]:
            yield f"only in {name}: {', '.join(titles)}"


def std_notes(sides: Iterable[Side]) -> Iterator[str]:
    """The kinds of their stds."""
    yield from (f"std: {std_kind(ddof)}" for ddof in sorted({side.summary.ddof for side in sides if side.summary}))


def outcome_note(margin: float) -> str:
    """The meaning of the outcomes, for a margin of this share."""
    return (
        f"faster and slower: the whole interval on one side of 1 and the ratio at least {margin * 100:g} % from it; "
        f"same: the whole interval within 1 ± {margin * 100:g} %; else ambiguous"
    )


def cell_title(spec: CellSpec) -> str:
    """A side's cell in a line."""
    warmup = shown_of(spec, "warmup")
    return f"{spec.heading} · warm-up {warmup}" if warmup else spec.heading


def turns_table(turns: Turns, results: Sequence[Result]) -> Table:
    """Each round's mean ± std of both and their ratio with its interval, then those of all rounds that count.

    Below: the outcome in a sentence, what A and B are and in what they differ, how far their numbers can be trusted,
    and where they come from. Rounds that never began have a record and are counted below. `results` are the cells of
    all rounds.
    """
    every = f"{len(turns.counted)} of {len(turns.rounds)} rounds" if len(turns.counted) < len(turns.rounds) else "all"
    begun: list[Round | None] = [each for each in turns.rounds if each.began]

    def mean(side: int, each: Round | None) -> str:
        summary = _sides(turns, each)[side]
        return MILLISECONDS.mean_and_std(summary) if summary else UNKNOWN

    def steps_each(each: Round | None) -> str:
        a, b = _sides(turns, each)
        return str(a.n) if a and b and a.n == b.n else UNKNOWN

    def doubt(each: Round | None) -> str:
        return doubt_word(results[2 * each.number - 2 : 2 * each.number] if each else results)

    columns: list[Column[Round | None]] = [
        Column("round", left=True, text=lambda each: str(each.number) if each else every),
        Column("a", "A ± std (ms)", text=partial(mean, 0)),
        Column("b", "B ± std (ms)", text=partial(mean, 1)),
        Column("n", "n each", rank=2, text=steps_each),
        Column("ratio", "A / B", text=lambda each: f"{of.ratio:.4f}" if (of := (each or turns).ratio) else UNKNOWN),
        Column("interval", rank=1, text=lambda each: of.bounds(".4f") if (of := (each or turns).ratio) else ""),
    ]
    if any(each.note for each in begun if each):
        columns.append(Column("note", left=True, text=lambda each: each.note if each else ""))
    shown = Table.of((*begun, None), columns, doubt=doubt)
    return msgspec.structs.replace(
        shown,
        records=tuple(_turns_record(turns, each) for each in (*turns.rounds, None)),
        caption=f"A and B in turns: {_title(turns.a)} over {_title(turns.b)}",
        footnotes=(*_turns_notes(turns), *provenance_notes(results)),
        label="ab",
        findings=tuple(_findings(turns)),
    )


def _sides(turns: Turns, of: Round | None) -> tuple[Summary | None, Summary | None]:
    return (of.a, of.b) if of else (turns.a.summary, turns.b.summary)


def _turns_record(turns: Turns, of: Round | None) -> dict[str, Value]:
    """A round, or all of them. Lists hold step times in seconds, in the order of the pairs."""
    record: dict[str, Value] = {"round": of.number if of else "all"}
    for name, side, summary in zip("ab", (turns.a, turns.b), _sides(turns, of), strict=True):
        record |= {name: _title(side)} | summary_record(name, summary)
    record |= ratio_record((of or turns).ratio, "ratio")
    record |= {
        **attributes(None if of else turns, "by", "passing", verdict="outcome", explanation="explanation"),
        "differs": None if of else "; ".join(turns.differs),
        "a_judged": None if of else _counts(turns.a_judged, turns.a.runs),
        "b_judged": None if of else _counts(turns.b_judged, turns.b.runs),
        "note": of.note or None if of else None,
    }
    exposed = None if of else turns.exposed
    record |= attributes(exposed, exposed_of="side", exposed_s="mean_s")
    record |= attributes(exposed, "low_s", "high_s", "share", prefix="exposed_")
    for place, name in enumerate("ab"):
        record[f"{name}_times_s"] = tuple(pair[place] for pair in of.pairs) if of else ()
    return record


def _findings(turns: Turns) -> Iterator[str]:
    yield turns.explanation
    if turns.exposed:
        yield exposed_words(turns.exposed, turns.level)


def _turns_notes(turns: Turns) -> Iterator[str]:
    yield from _findings(turns)
    if turns.exposed and is_imported(turns.communicating.spec.optimizer):
        yield "the custom optimizer runs on both sides, so its communication is not in the difference"
    for name, side, judged in (("A", turns.a, turns.a_judged), ("B", turns.b, turns.b_judged)):
        yield f"{name}: {_title(side)}" + (f"; its numbers: {_counts(judged, side.runs)}" if judged else "")
    yield f"differs, A | B: {'; '.join(turns.differs) or 'nothing'}"
    yield (
        "a round is a fresh process of each side, both of which take their steps in turns (A B A B ...)"
        if turns.is_apart
        else "a round is a fresh process with both models in memory, timed in pairs (A B, B A, A B ...); a step "
        "inherits the other's caches, so its time differs slightly from that of the cell alone"
    )
    if not_run := [each.note for each in turns.rounds if not each.began]:
        was = "was" if len(not_run) == 1 else "were"
        yield f"{len(not_run)} of {counted(len(turns.rounds), 'round')} {was} not run: {not_run[0]}"
    if turns.ratio:
        looks = f", which is {LEVEL * 100:g} % for a look after each round" if turns.is_apart else ""
        yield f"interval of all: {turns.level * 100:.4g} %{looks}, {turns.ratio.method}"
        if any(each.ratio for each in turns.rounds):
            yield f"interval of a round: {LEVEL * 100:g} %, {FROM_ONE_ROUND}, its pairs held by the same rule"
    yield outcome_note(turns.margin)
    yield "times: ms per step, over the measured steps, without the warm-up steps"
    if not turns.is_apart:
        yield "peak memory: not observable, both models are in memory at once"


def exposed_words(of: Exposed, level: float) -> str:
    """``exposed communication of A: 12.1 ms (10.9 to 13.4; 95 %), 8.0 % of the step (7.2 to 8.9)``."""
    low_s, high_s, step_s = of.low_s, of.high_s, of.step_s
    text, bounds, shares = partial(MILLISECONDS.time, mean_s=step_s, std_s=None), " (no interval)", ""
    if low_s is not None and high_s is not None:
        text = partial(MILLISECONDS.time, mean_s=step_s, std_s=(high_s - low_s) / 4)
        bounds = f" ({text(low_s)} to {text(high_s)}; {level * 100:g} %)"
        shares = f" ({low_s / step_s * 100:.1f} to {high_s / step_s * 100:.1f})"
    return (
        f"exposed communication of {of.side}: {text(of.mean_s)} ms{bounds}, {tenth_percent(of.share)} of "
        f"the step{shares}: its step time minus that of the same ranks without communication"
    )


def _counts(judged: Mapping[str, int], runs: int) -> str:
    """``steady in 4 of 5 rounds, outliers in 1``."""
    shown = [f"{name} in {number}" for name, number in sorted(judged.items(), key=lambda item: -item[1])]
    if shown:
        shown[0] += f" of {counted(runs, 'round')}"
    return ", ".join(shown)


def _title(side: Side) -> str:
    spec = side.spec
    model = f"{spec.size_label} · ctx {spec.context_length} · batch {spec.batch_size}"
    return " · ".join((model, spec.pass_, spec.precision, spec.device, *spec.variants))


class _Compared(NamedTuple):
    report: AgreementReport
    found: Agreement | None
    """None of the first, with which the others are compared."""


def agreement_tables(reports: Sequence[AgreementReport]) -> Iterator[Table]:
    """One table, each report against the first of the same dimensions, tokens and pass; none if no two are alike."""
    rows: list[_Compared] = []
    for first, *others in grouped(reports, _work).values():
        if others:
            rows += [_Compared(first, None), *(_Compared(report, agreement(report, first)) for report in others)]
    if not rows:
        return

    def error(of: str) -> Column[_Compared]:
        def worst(row: _Compared) -> float | None:
            errors: Errors | None = getattr(row.found, of, None)
            return errors.worst_error if errors and math.isfinite(errors.worst_error) else None

        def shown(share: float | None) -> str:
            return UNKNOWN if share is None else two_digit_percent(share)

        return Column(f"{of}_error", of, read=worst, show=shown)

    def why(row: _Compared) -> str:
        return row.found.why if row.found and not row.found.agrees else ""

    columns: tuple[Source[_Compared], ...] = (
        lambda row: cell_record(row.report.spec),
        Column("cell", left=True, text=lambda row: row.report.spec.title),
        error("logits"),
        error("gradients"),
        Column("result", left=True, read=lambda row: RESULTS[row.found.agrees] if row.found else "compared with"),
        Column("why", left=True, rank=1, read=lambda row: row.found.why if row.found else "", text=why),
    )
    yield Table.of(rows, columns, caption="Logits and gradients", footnotes=_AGREEMENT_MEANS, label="agreement")


def _work(report: AgreementReport) -> tuple[object, ...]:
    spec = report.spec
    return spec.dims, spec.context_length, spec.batch_size, spec.pass_, spec.workload, spec.seed, spec.device
