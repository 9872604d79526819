"""Two cells in turns as a table: a row a round, and one of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cs336_tui.analysis.ab import Round, Turns
from cs336_tui.analysis.comparison import Side
from cs336_tui.analysis.fields import size_label
from cs336_tui.analysis.merge import Result
from cs336_tui.export.footnotes import provenance_notes
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation
from cs336_tui.stats.ratio import FROM_ONE_ROUND, Ratio
from cs336_tui.stats.summaries import Summary


def turns_table(turns: Turns, results: Sequence[Result], *, notation: Notation = MILLISECONDS) -> Table:
    """Each round's mean ± std of both and their ratio with its interval, then those of all rounds that count.

    Below: the outcome in a sentence, what A and B are and in what they differ, how far their numbers can be trusted,
    and where they come from. Rounds that never began have a record and are counted below. `results` are the cells of
    all rounds.
    """
    unit = notation.symbol
    begun = [each for each in turns.rounds if each.began]
    has_notes = any(each.note for each in begun)
    rows = [_row(str(each.number), each.a, each.b, each.ratio, each.note, notation) for each in begun]
    every = f"{len(turns.counted)} of {len(turns.rounds)} rounds" if len(turns.counted) < len(turns.rounds) else "all"
    rows.append(_row(every, turns.a.summary, turns.b.summary, turns.ratio, "", notation))
    return Table(
        columns=(
            Column("round", left=True),
            *(Column(header) for header in (f"A ± std ({unit})", f"B ± std ({unit})", "n each", "A / B", "interval")),
            Column("note", left=True),
        )[: 7 if has_notes else 6],
        rows=tuple(row[: 7 if has_notes else 6] for row in rows),
        records=(*(_record(turns, each) for each in turns.rounds), _record(turns, None)),
        caption=f"A and B in turns: {_title(turns.a)} over {_title(turns.b)}",
        footnotes=(*_notes(turns, notation), *provenance_notes(results)),
        label="ab",
    )


def _row(
    name: str, a: Summary | None, b: Summary | None, ratio: Ratio | None, note: str, notation: Notation
) -> tuple[str, ...]:
    return (
        name,
        notation.mean_and_std(a) if a else UNKNOWN,
        notation.mean_and_std(b) if b else UNKNOWN,
        str(a.n) if a and b and a.n == b.n else UNKNOWN,
        f"{ratio.ratio:.4f}" if ratio else UNKNOWN,
        ratio.bounds(".4f") if ratio else "",
        note,
    )


def _record(turns: Turns, of: Round | None) -> dict[str, Value]:
    """A round, or all of them. Lists hold step times in seconds, in the order of the pairs."""
    ratio = of.ratio if of else turns.ratio
    record: dict[str, Value] = {"round": of.number if of else "all"}
    sides = (("a", turns.a, of.a if of else turns.a.summary), ("b", turns.b, of.b if of else turns.b.summary))
    for name, side, summary in sides:
        record |= {
            name: _title(side),
            f"{name}_mean_s": summary.mean_s if summary else None,
            f"{name}_std_s": summary.std_s if summary else None,
            f"{name}_n": summary.n if summary else 0,
        }
    record |= {key: getattr(ratio, key) if ratio else None for key in ("ratio", "low", "high", "level", "method")}
    record |= {
        "verdict": None if of else turns.outcome,
        "explanation": None if of else turns.explanation,
        "differs": None if of else "; ".join(turns.differs),
        "a_judged": None if of else _counts(turns.a_judged, turns.a.runs),
        "b_judged": None if of else _counts(turns.b_judged, turns.b.runs),
        "note": of.note or None if of else None,
    }
    for place, name in enumerate("ab"):
        record[f"{name}_times_s"] = tuple(pair[place] for pair in of.pairs) if of else ()
    return record


def _notes(turns: Turns, notation: Notation) -> Iterator[str]:
    yield turns.explanation
    for name, side, judged in (("A", turns.a, turns.a_judged), ("B", turns.b, turns.b_judged)):
        yield f"{name}: {_title(side)}" + (f"; its numbers: {_counts(judged, side.runs)}" if judged else "")
    yield f"differs, A | B: {'; '.join(turns.differs) or 'nothing'}"
    yield (
        "a round is a fresh process that has both models in memory and times them in pairs, A B, B A, A B and so on; "
        "a step finds the caches as the other one left them, so that its time is not quite that of a cell alone"
    )
    if not_run := [each.note for each in turns.rounds if not each.began]:
        yield f"{len(not_run)} of {len(turns.rounds)} rounds were not run: {not_run[0]}"
    if turns.ratio:
        yield f"interval of all: {turns.level * 100:g} %, {turns.ratio.method}"
        if any(each.ratio for each in turns.rounds):
            yield f"interval of a round: {turns.level * 100:g} %, {FROM_ONE_ROUND}, its pairs held by the same rule"
    margin = f"{turns.margin * 100:g} %"
    yield (
        f"faster and slower: the whole interval on one side of 1 and the ratio at least {margin} from it; same: the "
        f"whole interval within 1 ± {margin}; else ambiguous"
    )
    yield f"times: {notation.symbol} per step, over the measured steps, without the warm-up steps"
    yield "peaks of memory: not observable, as both models are in memory at once"


def _counts(judged: Mapping[str, int], runs: int) -> str:
    """``steady in 4 of 5 rounds, outliers in 1``."""
    shown = [f"{name} in {number}" for name, number in sorted(judged.items(), key=lambda item: -item[1])]
    if shown:
        shown[0] += f" of {runs} rounds"
    return ", ".join(shown)


def _title(side: Side) -> str:
    spec = side.spec
    model = f"{size_label(spec)} · ctx {spec.context_length} · batch {spec.batch_size}"
    return " · ".join((model, spec.pass_, spec.precision, spec.device, *spec.variants))
