"""Two cells in turns as a table: a row a round, and one of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from cs336_tui.analysis.ab import Exposed, Round, Turns
from cs336_tui.analysis.comparison import Side
from cs336_tui.analysis.merge import Result
from cs336_tui.config.variants import is_imported
from cs336_tui.export.comparison import outcome_note
from cs336_tui.export.footnotes import provenance_notes
from cs336_tui.export.tables import Column, Table, Value, attributes, ratio_record, summary_record
from cs336_tui.export.verdicts import doubt_word
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation, counted
from cs336_tui.stats.ratio import FROM_ONE_ROUND, Ratio
from cs336_tui.stats.summaries import Summary


def turns_table(turns: Turns, results: Sequence[Result], *, notation: Notation = MILLISECONDS) -> Table:
    """Each round's mean ± std of both and their ratio with its interval, then those of all rounds that count.

    Below: the outcome in a sentence, what A and B are and in what they differ, how far their numbers can be trusted,
    and where they come from. Rounds that never began have a record and are counted below. `results` are the cells of
    all rounds.
    """
    unit = notation.symbol
    every = f"{len(turns.counted)} of {len(turns.rounds)} rounds" if len(turns.counted) < len(turns.rounds) else "all"
    begun: list[Round | None] = [each for each in turns.rounds if each.began]
    columns: list[Column[Round | None]] = [
        Column("round", left=True, text=lambda each: str(each.number) if each else every),
        Column("a", f"A ± std ({unit})", text=lambda each: _mean(_sides(turns, each)[0], notation)),
        Column("b", f"B ± std ({unit})", text=lambda each: _mean(_sides(turns, each)[1], notation)),
        Column("n", "n each", rank=2, text=lambda each: _steps_each(*_sides(turns, each))),
        Column("ratio", "A / B", text=lambda each: f"{of.ratio:.4f}" if (of := _ratio(turns, each)) else UNKNOWN),
        Column("interval", rank=1, text=lambda each: of.bounds(".4f") if (of := _ratio(turns, each)) else ""),
    ]
    if any(each.note for each in begun if each):
        columns.append(Column("note", left=True, text=lambda each: each.note if each else ""))

    def doubt(each: Round | None) -> str:
        return doubt_word(results[2 * each.number - 2 : 2 * each.number] if each else results)

    shown = Table.of((*begun, None), columns, record=lambda each: _record(turns, each), doubt=doubt)
    return msgspec.structs.replace(
        shown,
        records=tuple(_record(turns, each) for each in (*turns.rounds, None)),
        caption=f"A and B in turns: {_title(turns.a)} over {_title(turns.b)}",
        footnotes=(*_notes(turns, notation), *provenance_notes(results)),
        label="ab",
        findings=tuple(_findings(turns, notation)),
    )


def _sides(turns: Turns, of: Round | None) -> tuple[Summary | None, Summary | None]:
    return (of.a, of.b) if of else (turns.a.summary, turns.b.summary)


def _ratio(turns: Turns, of: Round | None) -> Ratio | None:
    return of.ratio if of else turns.ratio


def _mean(summary: Summary | None, notation: Notation) -> str:
    return notation.mean_and_std(summary) if summary else UNKNOWN


def _steps_each(a: Summary | None, b: Summary | None) -> str:
    return str(a.n) if a and b and a.n == b.n else UNKNOWN


def _record(turns: Turns, of: Round | None) -> dict[str, Value]:
    """A round, or all of them. Lists hold step times in seconds, in the order of the pairs."""
    record: dict[str, Value] = {"round": of.number if of else "all"}
    for name, side, summary in zip("ab", (turns.a, turns.b), _sides(turns, of), strict=True):
        record |= {name: _title(side)} | summary_record(name, summary)
    record |= ratio_record(_ratio(turns, of), "ratio")
    record |= {
        **attributes(None if of else turns, verdict="outcome", explanation="explanation"),
        "differs": None if of else "; ".join(turns.differs),
        "a_judged": None if of else _counts(turns.a_judged, turns.a.runs),
        "b_judged": None if of else _counts(turns.b_judged, turns.b.runs),
        "note": of.note or None if of else None,
    }
    exposed = None if of else turns.exposed
    record |= attributes(
        exposed,
        exposed_of="side",
        exposed_s="mean_s",
        exposed_low_s="low_s",
        exposed_high_s="high_s",
        exposed_share="share",
    )
    for place, name in enumerate("ab"):
        record[f"{name}_times_s"] = tuple(pair[place] for pair in of.pairs) if of else ()
    return record


def _findings(turns: Turns, notation: Notation) -> Iterator[str]:
    yield turns.explanation
    if turns.exposed:
        yield exposed_words(turns.exposed, turns.level, notation)


def _notes(turns: Turns, notation: Notation) -> Iterator[str]:
    yield from _findings(turns, notation)
    if turns.exposed and is_imported(turns.communicating.spec.optimizer):
        yield "the custom optimizer runs on both sides, so its communication is not in the difference"
    for name, side, judged in (("A", turns.a, turns.a_judged), ("B", turns.b, turns.b_judged)):
        yield f"{name}: {_title(side)}" + (f"; its numbers: {_counts(judged, side.runs)}" if judged else "")
    yield f"differs, A | B: {'; '.join(turns.differs) or 'nothing'}"
    yield (
        "a round is a fresh process with both models in memory, timed in pairs (A B, B A, A B ...); a step inherits "
        "the other's caches, so its time differs slightly from that of the cell alone"
    )
    if not_run := [each.note for each in turns.rounds if not each.began]:
        was = "was" if len(not_run) == 1 else "were"
        yield f"{len(not_run)} of {counted(len(turns.rounds), 'round')} {was} not run: {not_run[0]}"
    if turns.ratio:
        yield f"interval of all: {turns.level * 100:g} %, {turns.ratio.method}"
        if any(each.ratio for each in turns.rounds):
            yield f"interval of a round: {turns.level * 100:g} %, {FROM_ONE_ROUND}, its pairs held by the same rule"
    yield outcome_note(turns.margin)
    yield f"times: {notation.symbol} per step, over the measured steps, without the warm-up steps"
    yield "peak memory: not observable, both models are in memory at once"


def exposed_words(of: Exposed, level: float, notation: Notation = MILLISECONDS) -> str:
    """``exposed communication of A: 12.1 ms (10.9 to 13.4; 95 %), 8.0 % of the step (7.2 to 8.9)``."""
    low_s, high_s, step_s = of.low_s, of.high_s, of.step_s
    text, bounds, shares = partial(notation.time, mean_s=step_s, std_s=None), " (no interval)", ""
    if low_s is not None and high_s is not None:
        text = partial(notation.time, mean_s=step_s, std_s=(high_s - low_s) / 4)
        bounds = f" ({text(low_s)} to {text(high_s)}; {level * 100:g} %)"
        shares = f" ({low_s / step_s * 100:.1f} to {high_s / step_s * 100:.1f})"
    return (
        f"exposed communication of {of.side}: {text(of.mean_s)} {notation.symbol}{bounds}, {of.share * 100:.1f} % of "
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
