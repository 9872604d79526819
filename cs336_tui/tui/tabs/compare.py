"""The Compare tab: a pivot, two sides against each other, cells in turns, warm-up, and reference points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal

import msgspec
from textual.binding import BindingType

from cs336_tui.analysis.comparison import overlap
from cs336_tui.analysis.effects import Trace, warmup_groups
from cs336_tui.analysis.fields import PivotError, select
from cs336_tui.analysis.merge import Result, grouped, measured, merge
from cs336_tui.analysis.pivot import SPEEDUP, VALUES, varying
from cs336_tui.analysis.published import ReferenceFileError, own, published
from cs336_tui.analysis.reference import matching, remark_on, sentence
from cs336_tui.analysis.reference_profiles import profiles_said
from cs336_tui.config.axis import UserError
from cs336_tui.export.writing.tables import Table
from cs336_tui.tui import format
from cs336_tui.tui.background import in_background, tried
from cs336_tui.tui.dialogs.windows import AskText, text_reader
from cs336_tui.tui.judging import give_way
from cs336_tui.tui.keys import bind, bind_keys, key_name, tab_name
from cs336_tui.tui.requests import requests_of
from cs336_tui.tui.tabs import compare_pages
from cs336_tui.tui.tabs.compare_pages import PivotChoice
from cs336_tui.tui.tabs.sessions import Compared
from cs336_tui.tui.tabs.status import settled_of
from cs336_tui.tui.widgets.columns import Copied
from cs336_tui.tui.widgets.lines import Line, Span, line, views_line, wrapped
from cs336_tui.tui.widgets.rows import Page, Rows, message

CompareView = Literal["pivot", "pairs", "turns", "warm-up", "reference"]
VIEWS: tuple[CompareView, ...] = ("pivot", "pairs", "turns", "warm-up", "reference")
_ONLY_IN: dict[str, tuple[CompareView, ...]] = {
    **dict.fromkeys(("value", "baseline", "swap"), ("pivot",)),
    "columns": ("pivot", "pairs", "turns"),
    "keep": ("reference",),
    "turn": ("turns",),
}
"""The views in which an action is offered, if not in all."""
_OF_RECORDINGS = "Recorded elsewhere: no step was timed, so there are no step times to compare."
_KERNEL_BY_KERNEL = "two recordings kernel by kernel: cs336-tui export A B --report kernels-over-cells"
_AT_ONCE = 300
"""Most cells that are tabulated within a frame; more are tabulated on a thread."""


class ComparePane(Rows):
    """Shows one view of `Compared`, and makes it again when a cell is over or something else is asked. Two sides open
    against each other."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("view", "view(1)", "View", "compare.view", shown_as="v V"),
        bind("view-before", "view(-1)", "Previous view", "compare.view_before", show=False),
        bind_keys("right", "value(1)", "Value", "compare.value", shown_as="←→"),
        bind_keys("left", "value(-1)", "Previous value", "compare.value_before", show=False),
        bind("baseline", "baseline(1)", "Baseline", "compare.baseline"),
        bind("swap", "swap", "Swap", "compare.swap"),
        bind_keys("enter", "choose", "Choose", "compare.choose"),
        bind("further", "columns(1)", "More columns", "compare.right", show=False),
        bind("further-back", "columns(-1)", "Previous columns", "compare.left", show=False),
        # After the arrows of the pivot's values, so that those come first in its view.
        bind_keys("right", "columns(1)", "More columns", "compare.columns", show=False),
        bind_keys("left", "columns(-1)", "Previous columns", "compare.columns_before", show=False),
        bind("keep", "keep", "Keep as reference", "compare.keep"),
        bind("make", "turn", "Exposed communication", "compare.turn"),
    ]

    view: CompareView = "pivot"
    choice = PivotChoice()
    """The pivot that is asked for."""
    _columns_page = 0
    """The page of columns, counted in a circle."""
    _compared = Compared(())
    _results: tuple[Result, ...] = ()
    _made_of: tuple[object, ...] = ()
    _page = Page(())

    def show(self, compared: Compared) -> None:
        """Paint; the page is made again only if it may have changed."""
        known = *((id(state), title) for title, state in compared.sessions), *(id(cell) for _, cell in compared.cells)
        self._compared = compared
        if (known,) != self._made_of[:1]:
            self.cursor, self.choice, self._columns_page = 0, PivotChoice(value=self.choice.value), 0
            if compared.has_sides or self.view == "pairs":
                self.view = "pairs" if compared.has_sides else "pivot"
                self.refresh_bindings()
        over = tuple((len(state.cells), settled_of(state)) for _, state in compared.sessions)
        cells = tuple(cell.is_over for _, cell in compared.cells)
        of = (known, over, cells, self.view, self.choice, self._columns_page, self.content_size.width)
        if of == self._made_of:
            return
        self._made_of, self._results = of, merge(compared.sessions)
        make = self._maker()
        take = partial(self._take, of, unjudged=self.view == "pivot")
        judges = self.view == "turns" or (self.view == "pairs" and compared.has_sides)
        if len(self._results) <= _AT_ONCE and not judges:
            take(make())
        else:
            self.coming = in_background(self, make, take)

    @property
    def _is_recorded(self) -> bool:
        return bool(self._results) and all(result.cell.spec.recording for result in self._results)

    def _maker(self, *, judges: bool = False) -> Callable[[], Page]:
        """A function that makes the page; it touches nothing of this widget, so that a thread may call it. `judges`: a
        pivot with the doubts about its figures."""
        results, choice, width = self._results, self.choice, max(self.content_size.width, 12)
        if self._is_recorded:
            shares = f"{tab_name('kernels')}, view cells, has the shares of each cell"
            return lambda: message(f"{_OF_RECORDINGS} {shares}; {_KERNEL_BY_KERNEL}.", width)
        match self.view:
            case "pivot":
                return partial(compare_pages.pivot_page, choice, results, width, self._columns_page, judges=judges)
            case "turns":
                return partial(_giving_way, partial(compare_pages.turns_page, results, width, self._columns_page))
            case "warm-up":
                return lambda: warmup_page(results, width)
            case "reference":
                return lambda: reference_page(results, width)
        marked = len(self._compared.sessions)
        if len(sides := self._sides) == 2:
            a, b = sides
            if overlap(a, b):
                return lambda: message("A and B are the same; mark another session or cell.", width)
            return partial(_giving_way, partial(compare_pages.pairs_page, a, b, width, self._columns_page))
        why = f"{marked} sessions are marked; two can be compared." if marked > 2 else (
            f"{_mark_two()}, to compare them here."
        )  # fmt: skip
        return lambda: message(why, width)

    def copied(self) -> Copied | None:
        """The tables of the view."""
        if not self._results or self._is_recorded:
            return None
        make = partial(_markdown, self.view, self.choice, self._results, self._sides)
        return Copied(f"Compare, view {self.view}", make)

    @property
    def _sides(self) -> list[list[Result]]:
        """The cells of each marked session, or each of two marked cells alone."""
        cells, marked = self._compared.cells, len(self._compared.sessions)
        if len(cells) == 2:
            return [[next(r for r in merge([source]) if r.cell.cell == cell.cell)] for source, cell in cells]
        return [[result for result in self._results if result.source == source] for source in range(marked)]

    def _take(self, of: tuple[object, ...], page: Page, *, unjudged: bool = False) -> None:
        if of != self._made_of:  # something else was asked meanwhile
            return
        self._page = page
        self._paint_page()
        if unjudged and self._results and not self._is_recorded:
            in_background(self, partial(_giving_way, self._maker(judges=True)), partial(self._take, of))

    def _paint_page(self) -> None:
        self.fill(self._page.rows, [views_line(VIEWS, self.view, "compare.view", "  "), *self._page.heading])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        here = action != "turn" or compare_pages.of_ranks(self._results) is not None
        return here and self.view in _ONLY_IN.get(action, VIEWS)

    def action_view(self, by: int) -> None:
        self.view = VIEWS[(VIEWS.index(self.view) + by) % len(VIEWS)]
        self.cursor = 0
        self.refresh_bindings()
        self.show(self._compared)

    def action_value(self, by: int) -> None:
        known = tuple(VALUES)
        self._choose(value=known[(known.index(self.choice.value) + by) % len(known)])

    def action_baseline(self, by: int) -> None:
        choice = self.choice
        try:
            known = compare_pages.baselines(choice, self._results)
        except PivotError as error:
            self._page = message(f"! {error}", self.content_size.width, "caution")
            self._paint_page()
            return
        if known:
            at = known.index(choice.baseline) if choice.baseline in known else 0
            self._choose(value=SPEEDUP, baseline=known[(at + by) % len(known)])

    def action_swap(self) -> None:
        rows, columns = compare_pages.rows_and_columns(self.choice, self._results)
        self._choose(rows=columns, columns=rows)

    def action_columns(self, by: int) -> None:
        self._columns_page += by
        self.show(self._compared)

    def _choose(self, **changes: object) -> None:
        self.choice, self._columns_page = msgspec.structs.replace(self.choice, **changes), 0
        self.show(self._compared)

    def action_choose(self) -> None:
        """Ask for a pivot's rows, columns and cells, or open the reason of a pair's outcome."""
        results, choice = self._results, self.choice
        if self.view != "pivot":
            if detail := self._page.details.get(self.cursor):
                self.app.push_screen(text_reader("Pair", detail))
            return
        if not results:
            return

        def check(text: str) -> str:
            wanted = partial(msgspec.structs.replace, value="mean")
            read = partial(compare_pages.from_text, text, choice)
            return tried(lambda: compare_pages.make(wanted(read()), results), PivotError)[1]

        def entered(text: str | None) -> None:
            if text is not None:
                self.choice, self._columns_page = compare_pages.from_text(text, self.choice), 0
                self.show(self._compared)

        about = f"Rows by columns, perhaps where field=value and ...; fields that vary: {', '.join(varying(results))}"
        self.app.push_screen(AskText("Pivot", about, compare_pages.as_text(choice, results), check=check), entered)

    def action_turn(self) -> None:
        if (spec := compare_pages.of_ranks(self._results)) is not None:
            requests_of(self).turn(spec)

    def action_keep(self) -> None:
        requests_of(self).keep_as_reference(self._results)


def _markdown(
    view: CompareView, choice: PivotChoice, results: Sequence[Result], sides: Sequence[Sequence[Result]]
) -> str:
    """The tables of a view as markdown. Raises `UserError` where there is none."""
    from cs336_tui.analysis.ab import runs_in_turns, turns_of
    from cs336_tui.analysis.comparison import compare
    from cs336_tui.export.pivot import pivot_table
    from cs336_tui.export.reference import reference_tables
    from cs336_tui.export.subjects.comparison import comparison_table, turns_table
    from cs336_tui.export.writeups import layout_tables
    from cs336_tui.export.writing.formats import render_all
    from cs336_tui.export.writing.verdicts import trust_notes

    def tables() -> Iterator[Table]:
        match view:
            case "pivot":
                yield pivot_table(compare_pages.make(choice, results), select(results, choice.where))
            case "warm-up":
                yield from layout_tables(results, "warm-up")
            case "reference":
                yield from reference_tables(results)
            case "turns":
                for rounds in runs_in_turns(results):
                    yield turns_table(turns_of(rounds), [each for both in rounds for each in both])
            case "pairs" if len(sides) == 2:
                yield comparison_table(compare(*sides), doubts=trust_notes(results))

    if not (found := list(tables())):
        raise UserError(f"Compare has no table in view {view}. {_mark_two()}.")
    return render_all(found, "markdown")


def _mark_two() -> str:
    sessions, cells = key_name("sessions.mark"), key_name("results.mark")
    return f"Mark two sessions ({sessions} in Sessions) or two cells ({cells} in Results)"


def _giving_way(make: Callable[[], Page]) -> Page:
    give_way()
    return make()


def warmup_page(results: Sequence[Result], width: int) -> Page:
    """The step times of every warm-up setting, the cost of the first step, and the step from which they are steady."""
    groups = warmup_groups(results)
    if not groups:
        return message("No cell has been measured yet.", width)
    several = [group for group in groups if len(group.warmups) > 1]
    alone = f"Every cell has the same warm-up setting; to compare several, enter 0,1,2 in {tab_name('configure')}."
    rows: list[Line] = [] if several else [*wrapped(alone, width, "muted"), ()]
    for group in several or groups:
        rows += wrapped(f"{group.title} · {group.machine}", width, "title", "  ")
        rows += [row for trace in group.traces for row in _trace(trace, width)]
        rows.append(())
    heading = (line(("Warm-up: raw step times, ms", "title"), (" · warm-up │ measured", "muted")),)
    return Page(heading, tuple(rows[:-1]))


def _trace(trace: Trace, width: int) -> list[Line]:
    cell = trace.result.cell
    run = f", run {cell.repeat}" if cell.repeat > 1 else ""
    warm = f"{trace.text(cell.warmup_times_s)} │ " if cell.warmup_times_s else ""
    steady = (
        "not steady by the last step" if trace.steady_after is None
        else "steady from the first step" if trace.steady_after == 0
        else f"steady after {trace.steady_after} step{'s' * (trace.steady_after > 1)}"
    )  # fmt: skip
    cost = f"first step {trace.first_step_cost:.3g}× the median · " if trace.first_step_cost is not None else ""
    summary = trace.summary
    mean = format.mean_std(summary.mean_s, summary.std_s, summary.n) if summary.mean_s is not None else ""
    return [
        *wrapped(f"  warm-up {trace.warmup}{run}: {mean} · {cost}{steady}", width, "strong", "      "),
        *wrapped(f"    {warm}{trace.text(cell.step_times_s)}", width, "text", "    "),
    ]


def reference_page(results: Sequence[Result], width: int) -> Page:
    """A sentence per spec: its mean, and the reference points of the same model and pass with their caveats; then
    each peak of memory and each part's kernels with the published ones."""
    rows: list[Line] = []
    points = published()
    try:
        points = (*points, *own())
    except ReferenceFileError as error:
        rows += [*wrapped(f"! {error}", width, "caution", "  "), ()]
    cells = grouped(measured(results), lambda result: result.spec)
    states = tuple({id(result.state): result.state for result in results}.values())
    profiles: list[Line] = []
    for profile in profiles_said(states, results, points):
        profiles += wrapped(profile.here, width, "strong", "    ")
        for there, caveats in profile.there:
            for text, role, indent in ((there, "text", "  "), (caveats, "muted", "    ")):
                profiles += [(Span(indent), *row) for row in wrapped(text, width - len(indent), role)]
    if not cells and not profiles:
        return message("No cell has been measured yet.", width)
    for spec, runs in cells.items():
        steps = [time_s for run in runs for time_s in run.cell.step_times_s]
        said = sentence(spec, sum(steps) / len(steps), matching(spec, runs[0].cell.in_force, points))
        rows += wrapped(said, width, "text", "    ")
    rows += [(), line(("Memory and kernels", "title")), *profiles] if profiles else []
    rows += [(), *wrapped(f"For orientation: {remark_on(cells)}.", width, "muted", "  ")]
    keep = f" · {key_name('compare.keep')} keeps these cells as your own"
    heading = (line(("Reference points", "title"), (keep, "muted")),)
    return Page(heading, tuple(rows))
