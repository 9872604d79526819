"""The Precision tab: speed-ups of a session's cells over fp32, and the dtypes of one cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from cs336_tui.analysis.effects import SpeedUp, mixed_speedups
from cs336_tui.analysis.merge import merge, title_of
from cs336_tui.events.reports import PrecisionReport, ReportKind
from cs336_tui.export.subjects import precision as tables
from cs336_tui.export.writing.tables import Table
from cs336_tui.stats.ratio import LEVEL
from cs336_tui.tui import format
from cs336_tui.tui.background import Works
from cs336_tui.tui.dialogs.windows import text_reader
from cs336_tui.tui.format import cell_columns
from cs336_tui.tui.keys import key_name, tab_name
from cs336_tui.tui.tabs.report import ReportPane
from cs336_tui.tui.tabs.status import OUTCOMES, settled_of
from cs336_tui.tui.widgets.columns import TableLines, on_screen, table_lines
from cs336_tui.tui.widgets.lines import Line, Span, line, wrapped
from cs336_tui.tui.widgets.rows import Page

_RANKS = {"class": 4, "count": 3, "parameters": 1, "inputs": 2, "gradients": 1}
_SPEEDUP_RANKS = {
    "fp32": 3, "other": 3, "interval": 4, "fp32_peak_allocated_bytes": 6, "other_peak_allocated_bytes": 6,
    "memory_ratio": 1,
}  # fmt: skip
_AT_ONCE = 300
"""Most cells whose speed-ups are made within a frame; those of more are made on a thread."""


class PrecisionPane(ReportPane, Works[Sequence[SpeedUp]]):
    """Shows the speed-ups, and below them the subject's report or how to get one."""

    kind: ClassVar[ReportKind] = "precision"
    elsewhere = "Dtypes are read by hooks while a step runs, so only cells that run here have them."
    about: ClassVar[str] = (
        "A precision report runs one step of this cell and reads the dtypes of every module by hooks, beside the "
        "course's toy model under autocast and its accumulation experiment. It takes about as long as one step."
    )

    _drawn: tuple[object, ...] = ()
    """The speed-ups, the reports, the width and the page of columns of what is drawn."""
    _page = _model = _experiments = Page(())
    """The speed-ups; the modules of the subject's report; the toy model and the accumulation, of that report or another
    one of the session."""

    def _show(self) -> None:
        state = self.subject.state
        if self.is_outdated((state, settled_of(state))):
            results = merge([(title_of(state), state)])
            self.work_out(partial(mixed_speedups, results), self.resort, at_once=len(results) <= _AT_ONCE)
        latest, before, width = self._latest, self.report, max(self.content_size.width, 12)
        content = latest.content if latest else None
        report = content if isinstance(content, PrecisionReport) else None
        made = state.contents(PrecisionReport)
        other = report or (made[-1] if made else None)  # no cell changes the experiments
        self.report = latest if report else None
        if self.report and (before is None or before.report != self.report.report):
            self.cursor = 0
        speedups, turned = self.worked_out, self.columns_page
        if self._drawn != (drawn := (speedups, report, other, width, turned)):
            self._drawn, self._page = drawn, speedups_page(speedups, width, turned)
            self._model = model_page(report, width, turned) if report else Page(())
            self._experiments = experiment_page(other, width, turned) if other else Page(())
        self.pages = max(self._page.pages, self._model.pages, self._experiments.pages, key=len)
        where = [Span(f" · {format.plain(report.device_name)} · torch {report.torch}", "muted")] if report else []
        below = self._model.rows or self._without(latest)
        self.fill((*self._page.rows, (), *below, *self._experiments.rows), [self.title(*where)])

    def action_choose(self) -> None:
        if detail := self._page.details.get(self.cursor):
            self.app.push_screen(text_reader("Speed-up", detail))


def speedups_page(speedups: Sequence[SpeedUp] | None, width: int, columns_page: int) -> Page:
    """A row for each cell measured in fp32 and in another precision; None: still to come."""
    rows: list[Line] = [line(("fp32 against the other precisions of this session", "title"))]
    if speedups is None:
        return Page((), (*rows, line(("working out ...", "muted"))))
    if not speedups:
        text = (
            "No cell of this session was measured both in fp32 and in another precision. Choose fp32 and another under "
            f"precision in {tab_name('configure')} and run them."
        )
        return Page((), (*rows, *wrapped(text, width, "muted")))
    counted = {of: sum(each.outcome == of for each in speedups if each.ratio) for of in OUTCOMES}
    rows[0] += tuple(Span(f" · {number} {of}", "strong") for of, number in counted.items() if number)
    cells = cell_columns(
        lambda each: each.spec,
        {"context": 5, "batch": 7, "device": 8},
        keys=("size", "context", "batch", "pass", "device", "precision"),
        size=lambda spec: spec.size_label,
    )
    exported = Table.of(speedups, (*cells, *tables.speedup_columns(".3f"))).without("outcome")
    table = on_screen(exported, _SPEEDUP_RANKS, shows=dict.fromkeys(("fp32", "other"), format.without_std))
    drawn = table_lines(table, width, [_mark(each) for each in speedups], page=columns_page)
    details = {place: _detail(each) for place, each in enumerate(speedups, len(rows) + len(drawn.heading))}
    about = (
        f"speed-up: mean step time of fp32 over that of the other; above 1, the other is faster; {LEVEL * 100:g} % CI. "
        f"GB: peak allocated, memory: over that of fp32. {key_name('rows.choose')}: why."
    )
    return Page((), (*rows, *drawn.lines, *wrapped(about, width, "muted", "  ")), details, drawn.pages)


def model_page(report: PrecisionReport, width: int, columns_page: int) -> Page:
    """The modules of the cell's model."""
    drawn = _drawn(tables.modules_table(report), width, columns_page)
    rows = (
        line(("dtypes in this cell's model", "title"), (f" · {report.spec.precision}", "strong")),
        line("logits ", (report.logits, "strong"), " · loss ", (report.loss, "strong")),
        *(wrapped(f"! {report.note}", width, "caution", "  ") if report.note else []),
        *drawn.lines,
    )
    return Page((), rows, pages=drawn.pages)


def experiment_page(report: PrecisionReport, width: int, columns_page: int) -> Page:
    """The toy model and the accumulation experiment, which are the same for all cells of the device."""
    ruled = " and by CUDA's rules" if report.toy_by_rules else ""
    toys, by_rules = tables.toys(report), tables.BY_RULES
    titles = {name: f"{'CUDA ' * name.startswith(by_rules)}{each.autocast}" for name, each in toys.items()}
    neither = "This device supports autocast neither to bf16 nor to fp16."
    toy = TableLines((), wrapped(neither, width, "muted"))
    if titles:
        toy = _drawn(tables.toy_table(report), width, columns_page, titles)
    sums = _drawn(tables.accumulation_table(report), width, columns_page)
    rows: tuple[Line, ...] = (
        (),
        line(("dtypes in the toy model", "title"), (f" · autocast on {report.device_name}{ruled}", "muted")),
        *(wrapped(f"! {report.toy_note}", width, "caution", "  ") if report.toy_note else []),
        *toy.lines,
        *(row for note in tables.rules_of(report) for row in wrapped(note, width, "muted", "  ")),
        (),
        line(("0.01 added 1,000 times", "title"), (" · on the CPU; 10 in exact arithmetic", "muted")),
        *sums.lines,
        *wrapped(tables.ADDEND_NOTE, width, "muted", "  "),
    )
    return Page((), rows, pages=max(toy.pages, sums.pages, key=len))


def _drawn(table: Table, width: int, columns_page: int, titles: Mapping[str, str] | None = None) -> TableLines:
    """A table of the report, with the ranks of its columns on the screen."""
    alike = (False,) * len(table.columns)
    return table_lines(on_screen(table, _RANKS, titles=titles or {}), width, alike=alike, page=columns_page)


def _mark(each: SpeedUp) -> Span:
    """The outcome; of a side without a timing, why."""
    missing = [f"{side.spec.precision}: {side.note}" for side in (each.fp32, each.other) if side.note]
    return Span(", ".join(missing), "caution") if missing else OUTCOMES[each.outcome]


def _detail(each: SpeedUp) -> str:
    sides = (
        f"{side.spec.precision}: {format.mean_std(side.summary.mean_s, side.summary.std_s, side.summary.n)}, "
        f"{side.runs} run{'s' * (side.runs != 1)}, "
        f"peak allocated {format.size(side.peak_allocated_bytes, format.NOT_AVAILABLE)}"
        for side in (each.fp32, each.other)
        if side.summary and side.summary.mean_s is not None
    )
    method = (f"The interval: {each.ratio.method}.",) if each.ratio else ()
    return "\n".join((f"{each.spec.title} on {each.machine}", "", *sides, "", each.explanation, *method))
