"""The leaderboards of the handouts: an own entry among the published ones, and the text of its submission."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cs336_tui.analysis.fields import device_label
from cs336_tui.analysis.grouping import ALWAYS, label
from cs336_tui.analysis.judgement import Finding
from cs336_tui.analysis.merge import Result, measured
from cs336_tui.analysis.published import Published, leaderboard
from cs336_tui.analysis.referee import refereed
from cs336_tui.config.presets import preset
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.audit import Results
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writing.footnotes import provenance_notes
from cs336_tui.export.writing.tables import Column, Source, Table, cell_record
from cs336_tui.export.writing.verdicts import doubt_word
from cs336_tui.stats.quantities import counted, duration, named

BOARDS = ("2026", "2025")
"""The editions that have a leaderboard, the newest first."""
_RULES = (
    "workload", "arch", "d_model", "num_heads", "context_length", "pass_", "precision", "causal", "timer", "norm",
    "dropout", "attention_dropout", "bias", "weight_tying", "warmup_for", "steps_for",
)  # fmt: skip
_OF_MODEL = ("d_ff", "num_layers", "vocab_size")
"""Choices that a leaderboard fixes, with the batch of all devices together."""


class Entry(NamedTuple):
    """A row of a leaderboard: an own result or a published one."""

    place: int
    mean_s: float
    name: str
    device: str
    marked: str
    own: Result | None = None


def broken_rules(spec: CellSpec, edition: str) -> list[str]:
    """The choices of a cell that an edition's leaderboard has otherwise, by their options; empty for an entry."""
    rule = preset(f"{edition}/leaderboard").sweep.with_devices((spec.device,)).cells()[0]
    fields = (*_RULES, *(_OF_MODEL if not rule.is_alone else ()))
    other = {field for field in fields if getattr(spec, field) != getattr(rule, field)}
    other -= {"norm"} if is_imported(spec.norm) else set()
    found = [AXES[field].option or field.removesuffix("_for") for field in fields if field in other]
    found += ["batch"] * (spec.rank_batch_size * spec.ranks != rule.batch_size)
    return found + ["parallel"] * (spec.ranks > 1 and spec.parallel == "none")


def leaderboard_tables(results: Sequence[Result], _decimals: int | None = None) -> tuple[Table, ...]:
    """As `subjects.layout.WriteUp.make`: a table for each leaderboard of which a cell is an entry. Raises `TableError`
    where none is."""
    timed = measured(results)
    entries = {edition: [each for each in timed if not broken_rules(each.spec, edition)] for edition in BOARDS}
    if tables := tuple(_table(edition, own) for edition, own in entries.items() if own):
        return tables
    if not timed:
        raise TableError("layout leaderboard: no cell has a result yet")
    nearest = min((broken_rules(each.spec, edition) for each in timed for edition in BOARDS), key=len)
    raise TableError(f"layout leaderboard: no cell is an entry; the nearest has another {named(nearest)}")


def _table(edition: str, own: Sequence[Result]) -> Table:
    published = leaderboard(edition)
    times = sorted([*map(_seconds, published), *(each.cell.running.mean for each in own)])

    def mine(result: Result) -> Entry:
        mean_s = result.cell.running.mean
        place = bisect_left(times, mean_s) + 1
        return Entry(place, mean_s, label(result, ALWAYS), device_label(result), "own", result)

    def theirs(row: Published) -> Entry:
        mean_s = _seconds(row)
        return Entry(bisect_left(times, mean_s) + 1, mean_s, row.note or "published", row.device, row.board)

    rows = [*map(mine, own), *map(theirs, published)]
    columns: tuple[Source[Entry], ...] = (
        Column("place"),
        Column("mean_s", "mean (ms)", show=lambda time_s: f"{time_s * 1e3:.6g}"),
        Column("name", "entry", left=True),
        Column("device", left=True),
        Column("marked", "marked", left=True),
        lambda row: cell_record(row.own.spec) if row.own else {},
    )
    notes = (f"published: {published[0].source}", *(line for each in own for line in _submission(each, published)))
    return Table.of(
        sorted(rows, key=lambda row: row.mean_s),
        columns,
        caption=f"The leaderboard of {edition}",
        footnotes=(*notes, *provenance_notes(own)),
        label=f"leaderboard-{edition}",
        doubt=lambda row: doubt_word([row.own]) if row.own else "",
    )


def _seconds(row: Published) -> float:
    return (row.mean_ms or 0.0) / 1e3


def _submission(result: Result, published: Sequence[Published]) -> Iterator[str]:
    """The text of a submission: the time, what was done, and what was assumed."""
    cell, spec, settings = result.cell, result.spec, result.cell.in_force
    faster = sum(_seconds(row) < cell.running.mean for row in published)
    devices = f"{counted(spec.ranks, 'device')}: {device_label(result)}"
    timed = f"{cell.running.mean * 1e3:.6g} ms a step, mean of {counted(cell.running.n, 'repetition')}"
    place = f"{faster} of {len(published)} published entries are faster"
    yield f"to submit: {timed} as do_bench times them, on {devices}; {place}"
    yield f"to submit, what was done: {', '.join(spec.variants) or 'nothing but the reference model as it is written'}"
    compiled = settings.compiler if settings and settings.compiler else "not compiled"
    whole = f"; the whole run took {duration(cell.whole_run_s)}" if cell.whole_run_s else ""
    caches = "caches empty at the start" if spec.within else "caches as they were (--within empties them)"
    yield f"to submit, assumptions: {compiled}, {caches}{whole}"
    yield from (f"to submit, caveat: {caveat}" for caveat in _caveats(result))


def _caveats(result: Result) -> Iterator[str]:
    """The rules that no check of the cell has shown to be kept."""
    cell, spec = result.cell, result.spec
    audit = cell.finished.audit if cell.finished else None
    results = (audit.results if audit else None) or Results()
    unchecked = refereed(cell).get("unchecked", Finding(True, "no result was compared"))
    if unchecked.holds:
        yield f"not shown to equal the reference: {unchecked.evidence}"
    has_moves = any(each.quantity == "moves" for each in results.differences)
    if is_imported(spec.optimizer) and (results.left_out or not has_moves):
        yield f"not shown to be AdamW: {spec.optimizer}"
    if is_imported(spec.loss) and "cross-entropy" in results.left_out:
        yield f"not shown to be cross-entropy: {spec.loss}"
