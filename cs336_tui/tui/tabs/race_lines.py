"""The rows of the Race tab, drawn from a race."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich.cells import cell_len

from cs336_tui.analysis.agreement import COMPARED, agreement_key
from cs336_tui.analysis.tuning import Entry, Race
from cs336_tui.config.choices import command_of
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.tuned_sweep import sweep_of_candidate
from cs336_tui.config.tuning import COSTS, Tuning, changed
from cs336_tui.config.variants import short
from cs336_tui.export.subjects.tuning import BASELINE, gains_table, interval_words, left_out_lines, ratio_words
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import UNKNOWN, count, duration, gigabytes
from cs336_tui.tui import format
from cs336_tui.tui.charts.bars import Scale, axis_line, interval_line, scale_of, share_bar
from cs336_tui.tui.tabs import status
from cs336_tui.tui.widgets.columns import ellipsis, on_screen, table_lines
from cs336_tui.tui.widgets.lines import (
    Line,
    Span,
    facts,
    fit,
    labelled,
    line,
    paragraphs,
    spread,
    views_line,
    width_of,
    wrapped,
)

START = "starting point"
VIEWS = ("ranking", "gains", "not tried")
_ROLES = {"best": "good", "tied": "strong", "in the race": "text", "differs": "caution", "disqualified": "caution",
    "over the limit": "caution",
          "oom": "caution", "failed": "bad"}  # fmt: skip
_BAR_ROLES = {"best": "good", "tied": "measured", "in the race": "measured"}
_SHORT = {
    "in the race": "in",
    "over the limit": "limit",
    "disqualified": "barred",
    "waiting": "waits",
    "not visited": "not run",
}
"""Statuses in a narrow window."""
_TOO_PLAIN = ("off", "on", "default", "none", "auto", "step")
"""Values that mean nothing without the name of their choice."""
_WIDE, _WIDER = 100, 140
"""Widths from which a row has the interval in figures, and what a candidate needs."""
_LEAST_BAR, _WIDEST_BAR = 16, 72
_TALL = 15
"""Height from which there is room for what runs, and for more on the candidate under the cursor."""
_INTERACTS = "interacts"
_FACTORS = 2 * len("0.123 [0.123, 0.123]  ") + len(_INTERACTS) + 2
"""Room for what stands behind the name of a choice in gains."""
_FARTHEST = 2.5
"""The axis ends at so many times the largest ratio of those in the race; what is slower is an arrow."""


class Raced(NamedTuple):
    """The content of the tab: a race, what runs of it, and the seconds of its budget that are used."""

    race: Race
    now: str
    running: frozenset[int]
    """The candidates that run, by number."""
    spent_s: float
    in_turns: bool
    """True once two of them run in turns."""
    is_over: bool
    """True if nobody runs it any more."""


class Order(NamedTuple):
    """The order of rows, by numbers of candidates: best first as the race stood when a round began."""

    since: tuple[object, ...] = ()
    """That round, of which race."""
    numbers: tuple[int, ...] = ()

    def now(self, state: SessionState, shown: Raced) -> Order:
        """The order of this race: the same until the next round or the first in turns begins, or the race ends."""
        since = id(state), shown.race.began_at, shown.race.rounds, shown.in_turns, bool(shown.race.ended)
        return self if since == self.since else Order(since, tuple(entry.number for entry in shown.race.entries))


def raced(state: SessionState, race: Race, *, goes_on: bool, left: str) -> Raced:
    """The race as the session tells it. `goes_on`: somebody runs it; `left`: how it goes on, if it was stopped."""
    in_turns = any(state.cells[cell].in_turns for entry in race.entries for cell in entry.cells)
    running = tuple(entry for entry in race.entries if goes_on and not state.running.keys().isdisjoint(entry.cells))
    now = _now(state, race, running) if goes_on else f"stopped{f': {left}' if left else ''}"
    numbers = frozenset(entry.number for entry in running)
    return Raced(race, race.ended or now, numbers, state.races[-1].spent_s, in_turns, not goes_on)


def _now(state: SessionState, race: Race, running: Sequence[Entry]) -> str:
    names = [name(race.tuning, entry.spec) for entry in running]
    if len(names) > 1:
        return f"in turns: {' and '.join(names)}"
    if names and (cell := state.running_cell):
        return f"{names[0]}: {status.stage(cell, state.last_at)}"
    if report := next((each for each in state.reports.values() if each.status is None), None):
        base = race.start.spec
        about = next((each.spec for each in race.entries if agreement_key(each.spec, base) == report.spec), report.spec)
        return f"logits and gradients of {name(race.tuning, about)}: {report.stage}"
    return "the next visit begins"


def name(tuning: Tuning, spec: CellSpec) -> str:
    """The choices that set a candidate apart from the starting point, in few words: ``sdpa, checkpoint 1``."""
    return ", ".join(_parts(tuning, spec)) or START


def _parts(tuning: Tuning, spec: CellSpec) -> list[str]:
    return [_value_words(AXES[field].option, value) for field, value in changed(tuning, spec).items()]


def _value_words(option: str, value: object) -> str:
    return short(value) if isinstance(value, str) and value not in _TOO_PLAIN else f"{option} {value}"


def shortened(tuning: Tuning, spec: CellSpec, width: int) -> str:
    """The name in this width: of a longer one the first choices, and how many more there are."""
    parts = _parts(tuning, spec) or [START]
    for kept in range(len(parts), 0, -1):
        text = ", ".join(parts[:kept]) + (f" +{len(parts) - kept}" if kept < len(parts) else "")
        if cell_len(text) <= width:
            return text
    return ellipsis(parts[0], width)


def race_words(race: Race) -> str:
    """The race in a line for other tabs: ``race: round 2, 5 of 8 in, best 0.448``."""
    best = f", best {ratio_words(race.best.ratio)}" if race.best and race.best.ratio is not None else ""
    how = "over" if race.ended else f"round {race.rounds}, {_in(race)}"
    return f"race: {how}{best}"


def _in(race: Race) -> str:
    return f"{sum(entry.is_alive for entry in race.entries)} of {len(race.entries)} in"


def heading(shown: Raced, view: str, width: int, height: int) -> list[Line]:
    """The lines above the rows of a view: the budget, the best, and what runs if there is room."""
    race = shown.race
    used = f"{duration(shown.spent_s)} of {duration(race.tuning.budget_s)}"
    progress = f"{used} · round {race.rounds} · {_in(race)}"
    lines = [
        first_line(race, view, width),
        share_bar(min(shown.spent_s / race.tuning.budget_s, 1.0), progress, width),
        best_line(race, width, told_end=height >= _TALL),
    ]
    now = line(("end   " if race.ended else "now   ", "muted"), (shown.now, "strong"))
    return [*lines, fit(now, width)] if height >= _TALL else lines


def first_line(race: Race, view: str, width: int) -> Line:
    """The views, and what the axis is of."""
    count = f" {len(race.left_out)}" * bool(race.left_out)
    names = [f"{each}{count}" if each == "not tried" else each for each in VIEWS]
    views = views_line(names, names[VIEWS.index(view)], "race.view")
    cost, room = COSTS[race.tuning.goal], width - width_of(views) - 1
    told = (f"{cost} over the starting point's, log axis", f"{cost}, log axis", "log axis", "")
    about = next(text for text in told if cell_len(text) <= room or not text)
    return spread(views, line((about, "muted")), width)


def best_line(race: Race, width: int, *, told_end: bool = False) -> Line:
    """The best candidate with its ratio; its name is as short as the width asks for. Unless `told_end`, why the race
    is over, too."""
    best = race.best
    if best is None:
        return line(("best  ", "muted"), ("none measured yet" if not race.ended else "none could be measured", "muted"))
    figures = f"{ratio_words(best.ratio, '')} {interval_words(best)}".rstrip()
    room = width - len("best  ") - len(figures) - 2
    first = line(("best  ", "muted"), (figures, "good"), f"  {shortened(race.tuning, best.spec, room)}")
    more = [line(("in doubt", "caution"))] if best.why else []
    more += [line((text, "muted")) for text in (_others(race), "" if told_end else race.ended) if text]
    return facts(first, more, width)


def _others(race: Race) -> str:
    so_far = "" if race.ended else " so far"
    if sum(entry.ratio is not None for entry in race.entries) < 2:
        return f"the only one measured{so_far}"
    tied = sum(entry.status in ("tied", "in the race") for entry in race.entries)
    return f"{format.plural(tied, 'other')} not told apart{so_far}" if tied else f"no other is as good{so_far}"


class Columns(NamedTuple):
    """The widths of a row's parts; 0 for what there is no room for."""

    name: int
    status: int
    interval: int
    needs: int
    bar: int


def columns_of(race: Race, width: int) -> Columns:
    """The widths in a window; they depend on the candidates alone, so that no column jumps."""
    longest = max(cell_len(name(race.tuning, entry.spec)) for entry in race.entries)
    state = len("over the limit") if width >= _WIDE else len("differs")
    interval = len("[0.123, 0.456]") + 1 if width >= _WIDE else 0
    needs = len("visits  peak (GB)  compile (s)") + 2 if width >= _WIDER else 0
    rest = width - len("▶ ") - state - interval - needs - len("1.234") - 3
    shown = max(min(longest, rest - _LEAST_BAR), 12)
    return Columns(shown, state, interval, needs, max(min(rest - shown, _WIDEST_BAR), 4))


def scale(race: Race, *, zoomed: bool) -> Scale:
    """The axis of all ratios with 1, or `zoomed` to those in the race."""
    alive = [entry for entry in race.entries if entry.status in ("best", "tied", "in the race")]
    near = [each for entry in alive for each in (entry.ratio, entry.low, entry.high) if each is not None]
    if zoomed and near:
        return scale_of(near)
    farthest = _FARTHEST * max((entry.ratio or 1.0 for entry in alive), default=1.0)
    others = [each for entry in race.entries for each in (entry.ratio, entry.low, entry.high) if each is not None]
    return scale_of([0.9, 1.1, *(min(each, max(farthest, 1.1)) for each in others)])


def column_names(columns: Columns, axis: Scale) -> Line:
    text = f"  {'candidate':<{columns.name}} {'status':<{columns.status}} {'ratio':>5} "
    text += f"{'interval':<{columns.interval}}" if columns.interval else ""
    text += f"{'visits  peak (GB)  compile (s)':<{columns.needs}}" if columns.needs else ""
    return (Span(text, "muted"), *axis_line(axis, columns.bar))


def row(race: Race, entry: Entry, columns: Columns, axis: Scale, *, runs: bool = False) -> Line:
    """A candidate: its name, status, ratio and interval; instead of a bar the reason why it has none. `runs` now."""
    doubted = entry.status == "best" and entry.why
    role = "caution" if doubted else _ROLES.get(entry.status, "muted")
    state = entry.status if columns.interval else _SHORT.get(entry.status, entry.status)
    label = shortened(race.tuning, entry.spec, columns.name)
    text = f"{ratio_words(entry.ratio, ''):>5} "
    if columns.interval:
        text += f"{interval_words(entry):<{columns.interval}}"
    if columns.needs:
        peak = gigabytes(entry.peak_bytes) if entry.peak_bytes else UNKNOWN
        compiled = f"{entry.compile_s:.1f}" if entry.compile_s else UNKNOWN
        text += f"{entry.visits or '':>6}  {peak if entry.visits else '':>9}  {compiled if entry.visits else '':>11}  "
    bar = interval_line(axis, columns.bar, entry.ratio, entry.low, entry.high, _BAR_ROLES.get(entry.status, "muted"))
    if entry.ratio is None and entry.why:
        bar = (Span(ellipsis(format.plain(entry.why), columns.bar), role),)
    return (
        Span("▶ " if runs else "  ", "strong"),
        Span(f"{label:<{columns.name}} ", "text" if entry.is_alive else "muted"),
        Span(f"{state:<{columns.status}} ", role),
        Span(text, "text" if entry.is_alive else "muted"),
        *bar,
    )


def brief(race: Race, entry: Entry, width: int, rows: int) -> list[Line]:
    """The candidate under the cursor in `rows` lines: its whole name, why it is out, what it needs."""
    parts = [name(race.tuning, entry.spec), " ".join(filter(None, (entry.status + ":" * bool(entry.why), entry.why)))]
    parts += [text.partition(", limit")[0] for label, text in _facts(race, entry) if label not in ("status", "ratio")]
    found = wrapped(" · ".join(parts), width, "muted")
    if len(found) > rows:
        found = [*found[: rows - 1], line((ellipsis(f"{found[rows - 1][0].text} …", width), "muted"))]
    return found + [()] * (rows - len(found))


def below(shown: Raced, entry: Entry, width: int, height: int) -> list[Line]:
    """The lines below the rows: the candidate under the cursor, and at the end the command of the best."""
    is_tall, best = height >= _TALL, shown.race.best
    lines = [(), *brief(shown.race, entry, width, 2)] if is_tall else brief(shown.race, entry, width, 1)
    if shown.is_over and best is not None and is_tall:
        lines += [line(("run the best again by", "muted")), *wrapped(command(shown.race, best), width)]
    return lines


def detail(state: SessionState, race: Race, entry: Entry, width: int) -> list[Line]:
    """Everything known of a candidate."""
    title = wrapped(entry.spec.title, width, "title")
    lines = [*title, *wrapped(entry.label, width, "strong"), ()]
    for label, text in _facts(race, entry):
        lines += labelled(label, text, width)
    lines += [(), *wrapped("Alone it is run again by", width, "muted"), *wrapped(command(race, entry), width)]
    visits = [state.cells[cell] for cell in entry.cells]
    if visits:
        lines += [(), line(("visit  cell  ms a step", "muted"))]
    for cell in visits:
        mean = format.ms(cell.running.mean, cell.running.std(1)) if cell.running.n else ""
        kind = "turns" if cell.in_turns else str(cell.repeat)
        lines.append(line(f"{kind:>5}  {status.number(cell):>4}  {mean:>9}  ", status.status(cell)))
    return lines


def _facts(race: Race, entry: Entry) -> Iterator[tuple[str, str]]:
    yield "status", f"{entry.status}{f': {entry.why}' if entry.why else ''}"
    if entry.ratio is not None:
        to_start = f"{ratio_words(entry.ratio, '')} {interval_words(entry)} to the starting point"
        yield "ratio", to_start if entry.number else f"1: all others are to this {BASELINE}"
    if entry.cost is not None:
        match race.tuning.goal:
            case "step":
                cost = f"{format.ms(entry.cost)} ms a step"
            case "memory":
                cost = f"{gigabytes(entry.cost)} GB"
            case goal:
                cost = f"{count(1 / entry.cost)} {goal}"
        yield "measured", f"{cost}, {format.plural(entry.visits, 'visit')}"
    if entry.peak_bytes:
        limit = f", limit {gigabytes(race.limit_bytes)} GB" if race.limit_bytes else ""
        yield "memory", f"peak {gigabytes(entry.peak_bytes)} GB{limit}"
    if entry.compile_s:
        yield "compile", f"compiled in {entry.compile_s:.1f} s"
    if entry.agreement is not None and entry.status != "differs":
        yield "results", entry.agreement.why
        yield "compared", COMPARED


def command(race: Race, entry: Entry) -> str:
    """The command line that runs a candidate alone, with the steps of a whole run."""
    return command_of(sweep_of_candidate(race.tuning, entry.spec))


def not_tried(race: Race, width: int) -> list[Line]:
    """The combinations that were left out, a paragraph a reason."""
    if not race.left_out:
        return wrapped("Every combination of these choices is in the race.", width, "muted")
    return paragraphs((text.removeprefix("not tried: ") for text in left_out_lines(race.left_out)), width, indent="  ")


def gains(race: Race, width: int) -> list[Line]:
    """Gains of each choice alone, beside the best candidate's other choices, and of all of these together."""
    exported = gains_table(race)
    if exported is None:
        text = "Known once the best candidate, and others that differ from it in one choice, were measured."
        return wrapped(text, width, "muted")
    room = max(width - _FACTORS, 12)
    names = (ellipsis(_value_words(str(each["choice"]), each["value"]), room) for each in exported.records)
    rows = tuple((name, *factors) for name, (_, *factors) in zip(names, exported.rows, strict=True))
    shown = on_screen(msgspec.structs.replace(exported, rows=rows))
    roles = ["good" if record["in_best"] else "text" for record in exported.records]
    marks = [Span(_INTERACTS if record["interacts"] else "", "caution") for record in exported.records]
    drawn = table_lines(shown.without("interacts", "in_best"), width, marks, roles=roles)
    return [*drawn.lines, (), *paragraphs(exported.footnotes, width, "muted", "  ")]
