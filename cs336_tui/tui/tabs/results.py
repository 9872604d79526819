"""The Results tab: a row per cell, filled as it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.message import Message

from cs336_tui.analysis.collectives import algbw, busbw
from cs336_tui.analysis.fields import FIELDS, NUMBERS, shown_of
from cs336_tui.config.counts import duration_words
from cs336_tui.events.events import CellFinished
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.export.tables import Column
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import bandwidth
from cs336_tui.tui import format
from cs336_tui.tui.judging import Assessment, Judging
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.status import verdict
from cs336_tui.tui.titles import CELL_KEYS, cell_columns, told_variants, unique_names
from cs336_tui.tui.widgets.columns import Layout, lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line
from cs336_tui.tui.widgets.rows import Rows

if TYPE_CHECKING:
    from cs336_tui.tui.charts.bandwidth import Bandwidths


class _ShownCell(NamedTuple):
    """A row's cell, with its verdicts."""

    state: SessionState
    cell: CellState
    found: Assessment | None

    @property
    def mean(self) -> str:
        running = self.cell.running
        return format.ms(running.mean, running.std(self.state.ddof)) if running.n else format.NOT_YET

    @property
    def std(self) -> str:
        std = self.cell.running.std(self.state.ddof)
        return format.ms(std, std)

    @property
    def median(self) -> str:
        summary = self.cell.summary(1) if self.cell.is_over else None
        return format.ms(summary.median_s, summary.std_s) if summary else format.NOT_YET

    @property
    def warmup(self) -> str:
        """The setting; if it is automatic, with the number of steps that it took."""
        spec, finished = self.cell.spec, self.cell.finished
        if not spec.warmup_is_open:
            return str(spec.warmup_steps)
        word = "auto" if spec.warmup_for is None else duration_words(spec.warmup_for)
        return f"{word} ({finished.warmup_steps_done})" if finished else word

    @property
    def skew(self) -> str:
        skew = self.cell.skew
        return format.ms(skew.mean, skew.std(self.state.ddof)) if skew.n else format.NOT_YET

    @property
    def algbw(self) -> str:
        step_s = self._collective_s
        return bandwidth(algbw(self.cell.spec, step_s)) if step_s else format.NOT_YET

    @property
    def busbw(self) -> str:
        step_s = self._collective_s
        return bandwidth(busbw(self.cell.spec, step_s)) if step_s else format.NOT_YET

    @property
    def _collective_s(self) -> float | None:
        """Mean step time of a collective."""
        running = self.cell.running
        return running.mean if self.cell.spec.is_collective and running.n else None

    @property
    def flops(self) -> str:
        return format.flops(self.found.limit.flops_per_s if self.found and self.found.limit else None)

    @property
    def share_of_peak(self) -> str:
        """In % of the measured peak; if there is none, of the data sheet's, and so named."""
        found = self.found
        share = found.share_of_peak(self.cell.running.mean) if found and self.cell.is_over else None
        if share is None or found is None:
            return format.NOT_YET
        of = " of sheet" if not found.peak_is_measured else " of wrong peak" if share > WRONG_PEAK else ""
        return f"{share * 100:.3g}{of}"

    @property
    def peak(self) -> str:
        if (finished := self.cell.finished) is None:
            return format.NOT_YET
        allocated = finished.peak_allocated_bytes
        return format.size(finished.peak_rss_bytes if allocated is None else allocated)


_ASKED = (*CELL_KEYS, "warmup", "run")
"""Columns, beside those of variants, whose texts are known before a cell runs."""


def _columns(
    variants: Mapping[str, set[str]], *, repeats: bool = False, recorded: bool = False, has_ranks: bool = False
) -> tuple[Column[_ShownCell], ...]:
    """The columns, with those of variants in which the cells differ. The model is never dropped, the std before other
    variants."""
    names = {key: unique_names(shown) for key, shown in variants.items() if len(shown) > 1}
    ranks = {"context": 3, "batch": 8, "precision": 2, "device": 10, "model": 0}
    return (
        Column("#", rank=9, text=lambda item: str(status.number(item.cell))),
        *cell_columns(lambda item: item.cell.spec, ranks, names, recorded=recorded),
        Column("warmup", "warm-up", rank=7),
        Column("n", rank=6, text=lambda item: str(item.cell.running.n)),
        Column("mean", "mean ms"),
        Column("std", "std ms", rank=2 if names else 1),
        Column("verdict", left=True, rank=2, text=lambda item: verdict(item.cell, item.found).text),
        Column("median", rank=11),
        *([Column[_ShownCell]("skew", "skew ms", rank=4)] if has_ranks else []),
        Column("tokens", "tokens/s", rank=4, text=lambda item: format.rate(item.cell.tokens_per_s)),
        Column("flops", "FLOP/s", rank=12),
        Column("share_of_peak", "% peak", rank=13),
        Column("peak", rank=5),
        *([Column[_ShownCell]("run", rank=4, text=lambda item: str(item.cell.repeat))] if repeats else []),
    )


COLUMNS = _columns({})


def _columns_of_collectives(
    variants: Mapping[str, set[str]], *, repeats: bool = False
) -> tuple[Column[_ShownCell], ...]:
    """The columns where every cell is a collective; both bandwidths are in GB/s."""

    def named(key: str, rank: int = 0, title: str = "") -> Column[_ShownCell]:
        field = FIELDS[key]
        left = key not in NUMBERS
        return Column(key, title or field.title, left, rank, text=lambda item: shown_of(item.cell.spec, key))

    return (
        Column("#", rank=9, text=lambda item: str(status.number(item.cell))),
        named("op"),
        named("size"),
        named("ranks"),
        *(
            named(key, 1)
            for key, shown in variants.items()
            if len(shown) > 1 and key not in ("op", "ranks", "workload")
        ),
        named("precision", 8),
        named("device", 10),
        Column("warmup", "warm-up", rank=7),
        Column("n", rank=6, text=lambda item: str(item.cell.running.n)),
        Column("mean", "mean ms"),
        Column("std", "std ms", rank=5),
        Column("skew", "skew ms", rank=2),
        Column("algbw", rank=4),
        Column("busbw"),
        Column("verdict", left=True, rank=3, text=lambda item: verdict(item.cell, item.found).text),
        Column("median", rank=11),
        Column("peak", rank=12),
        *([Column[_ShownCell]("run", rank=4, text=lambda item: str(item.cell.repeat))] if repeats else []),
    )


_STATUS = "status"
_WIDEST_STATUS = 11
_LEAST_ROWS = 5
"""Rows of the table that a chart leaves."""
_CHART_ROWS = (9, 16)
"""Fewest and most rows of a chart."""
_WHOLE_VERDICTS = 110
"""Width from which all verdicts are named; below it the first and the number of others."""
_FEW = 200
"""Most rows that are all measured for the columns' widths; of more, those that have been in sight."""


class ResultsPane(Rows):
    """The table; Enter posts `Rows.Chosen` with the cell's index. Without focus the cursor is on the cell in Live."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "mark", "Mark to compare", id="results.mark")]

    class Marked(Message):
        """The user wants to compare this cell, or no longer."""

        def __init__(self, cell: CellState) -> None:
            super().__init__()
            self.cell = cell

    _state: SessionState | None = None
    _cells: Sequence[CellState] = ()
    _places: Mapping[int, int] = {}
    _done: dict[int, tuple[CellFinished | None, Assessment | None, tuple[str, ...]]]
    _judging: Judging | None = None
    _columns = COLUMNS
    _in_common = ""
    _alike: Sequence[bool | None] = ()
    _least: Sequence[int] = ()
    _ddof = 1
    _marked: Sequence[CellState] = ()
    _of_messages = False
    """True if every cell is a collective."""
    _charts: Bandwidths | None = None

    def show(
        self,
        state: SessionState,
        in_sight: CellState | None,
        marked: Sequence[CellState] = (),
        judging: Judging | None = None,
    ) -> None:
        """Paint; without focus the cursor is on the cell `in_sight`. `marked`: cells to compare. `judging` gives
        verdicts of the cells in sight."""
        self._judging = judging
        self._take(state)
        self._marked = tuple(marked)
        if not self._cells:
            self.fill((), [(), line(("No results yet. Each cell of a run adds a row here.", "muted"))])
            return
        if in_sight is not None and not self.has_focus:
            self.cursor = self._places.get(in_sight.cell, self.cursor)
        heading_rows = 2 if self._in_common else 1
        below = self._chart(state, heading_rows) if self._of_messages else ()
        self.draw_from(len(self._cells), self._rows_in_sight, heading_rows=heading_rows, below=below)

    def _chart(self, state: SessionState, heading_rows: int) -> Sequence[Line]:
        """Bandwidth over size of the operation under the cursor, where the table leaves room for it."""
        fewest, most = _CHART_ROWS
        width, height = self.content_size
        rows = height - heading_rows - max(min(len(self._cells), height // 3), _LEAST_ROWS) - 1
        if rows < fewest:
            return ()
        if self._charts is None:
            from cs336_tui.tui.charts.bandwidth import Bandwidths

            self._charts = Bandwidths()
        spec = self._cells[min(self.cursor, len(self._cells) - 1)].spec
        drawn = self._charts.lines(state, status.settled_of(state), spec, width, min(rows, most))
        return [(), *drawn] if drawn else ()

    def _take(self, state: SessionState) -> None:
        if state is not self._state or state.ddof != self._ddof:
            self._state, self._ddof = state, state.ddof
            self._done, self._least, self._places = {}, (), {}
        self._cells = tuple(state.cells.values())
        if len(self._places) == len(self._cells):
            return
        self._places = {cell.cell: place for place, cell in enumerate(self._cells)}
        variants = told_variants(cell.spec for cell in self._cells)
        repeats = any(cell.repeat > 1 for cell in self._cells)
        self._of_messages = bool(self._cells) and all(cell.spec.is_collective for cell in self._cells)
        self._columns = (
            _columns_of_collectives(variants, repeats=repeats)
            if self._of_messages
            else _columns(
                variants,
                repeats=repeats,
                recorded=all(cell.spec.recording for cell in self._cells),
                has_ranks=any(cell.spec.ranks > 1 for cell in self._cells),
            )
        )
        alike = {FIELDS[key].title: next(iter(shown)) for key, shown in variants.items() if len(shown) == 1}
        self._in_common = ", ".join(f"{title} {value}" for title, value in alike.items())  # columns are dropped first
        if self._of_messages:
            self._in_common += " · algbw, busbw in GB/s · l: busbw over size"
        self._least, self._done = (), {}
        if len(self._cells) <= _FEW:
            self._alike = ()
            return
        items = [_ShownCell(state, cell, None) for cell in self._cells]
        self._alike = tuple(
            len({column.cell(item) for item in items}) == 1 if column.key in (*_ASKED, *variants) else None
            for column in self._columns
        )

    def _rows_in_sight(self, first: int, last: int) -> tuple[list[Line], list[Line]]:
        few = len(self._cells) <= _FEW
        counted = self._cells if few else self._cells[first:last]
        in_sight = range(first, last) if few else range(len(counted))
        judging, state = self._judging, self._state
        found = [
            (judging.of if place in in_sight else judging.known)(state, cell) if judging and state else None
            for place, cell in enumerate(counted)
        ]
        texts = [self._texts(cell, known) for cell, known in zip(counted, found, strict=True)]
        marks = [status.status(cell) for cell in counted]
        status_width = max(len(mark.text) for mark in marks) if few and marks else _WIDEST_STATUS
        width = self.content_size.width - (0 if self._of_messages else self.position_width)  # it is in the line above
        columns, at = self._columns, self._verdict_at
        alike = list(self._alike or (None,) * len(columns))
        alike[at] = False  # it tells even where it is the same everywhere
        layout = lay_out(columns, texts, width - status_width, least=self._least, alike=alike)
        if few:
            texts, marks, found = texts[first:last], marks[first:last], found[first:last]
        else:
            self._least = layout.widths
        signs = {id(cell): (Span(f" ◆ {name}", "title"),) for name, cell in zip("AB", self._marked, strict=False)}
        rows = [
            (*layout.spans(row, {at: verdict(cell, known).role}), mark, *signs.get(id(cell), ()))
            for cell, row, mark, known in zip(self._cells[first:last], texts, marks, found, strict=True)
        ]
        above = [line((f"all cells: {self._in_common}", "muted"))] if self._in_common else []
        return [*above, heading(layout, width)], rows

    def action_mark(self) -> None:
        if self.cursor < len(self._cells):
            self.post_message(self.Marked(self._cells[self.cursor]))

    def _texts(self, cell: CellState, found: Assessment | None) -> tuple[str, ...]:
        """The cell's texts; those of a finished cell are made once."""
        assert self._state is not None
        finished, assessed, texts = self._done.get(cell.cell, (None, None, ()))
        if not texts or finished is not cell.finished or assessed is not found:
            item = _ShownCell(self._state, cell, found)
            texts = tuple(column.cell(item) for column in self._columns)
            if cell.is_over:
                self._done[cell.cell] = (cell.finished, found, texts)
        if self.content_size.width >= _WHOLE_VERDICTS:
            return texts
        short = verdict(cell, found, whole=False).text
        return (*texts[: self._verdict_at], short, *texts[self._verdict_at + 1 :])

    @property
    def _verdict_at(self) -> int:
        return [column.key for column in self._columns].index("verdict")


def heading(layout: Layout, width: int) -> Line:
    """The columns' names, and that of the status if there is room."""
    names = layout.heading
    return line((names + _STATUS if len(names) + len(_STATUS) <= width else names, "muted"))
