"""`cs336-tui tune`: the fastest step among choices, raced. Its progress is a line a round, and on a terminal the
candidate that runs and the budget that is left. With `--dry-run` what would be searched, and how long it would take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import click

from cs336_tui.analysis.next_step import next_step
from cs336_tui.analysis.shortlist import lacking, plan_of, shortlist, started_of
from cs336_tui.analysis.tuning import Entry, Race, race_of
from cs336_tui.cli.files import Destination, file_options, is_given, json_text
from cs336_tui.cli.flags import Parsed, gpu_option, reword, start_options, trust_option
from cs336_tui.cli.help import Choice, command, heading, option, option_under
from cs336_tui.cli.progress import RunProgress, bar, cut
from cs336_tui.cli.run import EXIT_CELL_FAILED, EXIT_INTERRUPTED, EXIT_OK, HeadlessRun, Outputs, carry_out
from cs336_tui.cli.streams import TERMINAL, laid_out, on_terminal, shown
from cs336_tui.cli.suggestions import searched, sessions
from cs336_tui.cli.targets import Counter, predicting, settle
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.counts import Auto
from cs336_tui.config.presets import Preset, PresetError, check_new, preset, save
from cs336_tui.config.spec import ARGUMENTS, PASSES, CellSpec, SpecError
from cs336_tui.config.tuned_sweep import USUAL_OVER, VISIT, Search, command_of_search, search_of, sweep_of_candidate
from cs336_tui.config.tuning import GOALS, NOT_AFFORDED, Goal, budget_of, label, limit_of
from cs336_tui.config.values import LANGUAGE_MODEL
from cs336_tui.events import events as ev
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.gpus import GpuModel, find_gpu
from cs336_tui.export.subjects.tuning import (
    factor_words,
    failure_lines,
    finding,
    gains_table,
    next_lines,
    plan_document,
    plan_heading,
    plan_table,
    preset_line,
    race_document,
    race_table,
)
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.predictor import predictions_of
from cs336_tui.runner.tuning import Tuner
from cs336_tui.session import store
from cs336_tui.session.state import SessionState, is_race_alone, visits_of
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted, duration

_QUIET_S = 5.0
"""Seconds after which a round that changed nothing has a line all the same."""
_MOST_NAMED = 2
"""The most candidates that a line names."""


class RaceProgress(RunProgress):
    """A line a round instead of a line a cell: who is out and why, the best so far, the budget left; rounds that change
    none of it have one every few seconds. As `RunProgress` where no race goes on."""

    def __init__(self, state: SessionState, stream: TextIO) -> None:
        super().__init__(state, stream)
        self._out: set[int] = set()
        self._best, self._told_best = "", -1
        self._told_at = 0.0

    def show(self, event: ev.Event) -> None:
        if self._race is None:
            super().show(event)
            return
        match event:
            case ev.TuningStarted():
                left_out = f", {counted(len(event.left_out), 'combination')} left out" if event.left_out else ""
                self._line(f"race of {counted(len(event.candidates), 'candidate')}{left_out}; {self._budget()}")
            case ev.CellFinished() | ev.CellSkipped() if not self._state.waiting and not self._state.running:
                if race := race_of(self._state):
                    self._tell(race, self._state.cells[event.cell], event.at)
            case ev.ReportFinished() if event.status != "ok":
                super().show(event)
            case ev.ReportStarted() | ev.ReportStage() if self._live:
                self.say(f"comparing logits and gradients · {self._state.reports[event.report].spec.title}")
            case ev.Notice() | ev.DeviceSampled() | ev.CellStarted() | ev.StageChanged() | ev.StepsTimed():
                super().show(event)

    def _tell(self, race: Race, cell: CellState, at: float) -> None:
        """``round 2: 3 of 8 left; best: sdpa 0.71 [0.70, 0.73]; out: checkpoint 1 (+40 %); 1:20 left``."""
        left = [entry for entry in race.entries if entry.is_alive]
        news = [entry for entry in race.entries if not entry.is_alive and entry.number not in self._out]
        self._out |= {entry.number for entry in news}
        gone = [entry for entry in news if entry.status != "not visited"]
        self._best, best = _best_words(race), race.best.number if race.best else -1
        if not news and best == self._told_best and at - self._told_at < _QUIET_S:
            return
        self._told_best, self._told_at = best, at
        unseen = f"{NOT_AFFORDED} of {len(news) - len(gone)}" if len(news) > len(gone) else ""
        parts = [f"{len(left)} of {len(race.entries)} left", self._best, _out_words(gone), unseen, self._budget()]
        self._line(f"{_place(cell)}: {'; '.join(filter(None, parts))}")

    @property
    def _race(self) -> ev.TuningStarted | None:
        """The race that goes on."""
        return self._state.tuning if self._state.has_unfinished_race else None

    def _budget(self) -> str:
        return f"{duration(self._left_s)} left" if self._left_s > 0 else "the budget is used up"

    @property
    def _left_s(self) -> float:
        return self._race.tuning.budget_s - self._state.races[-1].spent_s if self._race else 0.0

    def _running(self, cell: CellState) -> Iterator[str]:
        """``round 2 · 5/12 · attention sdpa · measured 3/5``."""
        if self._race is None:
            yield from super()._running(cell)
            return
        name = label(self._race.tuning, cell.asked_spec)
        visits = chain.from_iterable(visits_of(self._state).values())
        queued = [each for each in visits if each.repeat == cell.repeat and not each.in_turns]
        place = "" if cell.in_turns else f" · {sum(each.is_over for each in queued) + 1}/{len(queued)}"
        yield cut(f"{_place(cell)}{place} · {name}", f" · {self._stage(cell)}", self._width)

    def _bar(self) -> str:
        if self._race is None:
            return super()._bar()
        share = 1 - self._left_s / self._race.tuning.budget_s
        told = " · ".join(filter(None, (self._best, self._budget())))
        return bar(min(max(share, 0.0), 1.0), told, self._width)


def _place(cell: CellState) -> str:
    return "in turns" if cell.in_turns else f"round {cell.repeat}"


def _best_words(race: Race) -> str:
    best = race.best
    if best is None:
        return "none measured yet"
    if best.number == 0 or best.ratio is None:
        return "best: the starting point"
    return f"best: {best.label} {factor_words(best, 2)}"


def _out_words(gone: Sequence[Entry]) -> str:
    """Some of those that left, first what is not just slower, with the reason, and how many more."""
    if not gone:
        return ""
    first = sorted(gone, key=lambda entry: entry.status in ("out", "cut"))[:_MOST_NAMED]
    named = [f"{entry.label} ({(entry.why or entry.status).partition('; ')[0]})" for entry in first]
    more = len(gone) - len(named)
    return f"out: {', '.join(named)}" + (f" and {more} more" if more else "")


_OWN = ("model_path", *ARGUMENTS)
"""Choices of users' own code, which may be among the searched values alone."""


class RaceRun(HeadlessRun):
    """The sink of a race, or of a session that may have one."""

    shows_by = RaceProgress
    went_on = False
    """True if it goes on with the race of a session."""

    @property
    def is_of_race(self) -> bool:
        """True if what it comes to is a race: that went on, or that is all of its session."""
        return self.went_on or is_race_alone(self.state)

    @property
    def exit_code(self) -> int:
        """0 when there is a best candidate, 1 when none could be measured, 130 when it was interrupted; as of other
        runs if it is not of a race."""
        race = race_of(self.state) if self.is_of_race else None
        if race is None:
            return super().exit_code
        return EXIT_INTERRUPTED if self.stopped else EXIT_OK if race.best else EXIT_CELL_FAILED

    @property
    def without_flops(self) -> tuple[CellSpec, ...]:
        """None: predictions after the race would not be of its budget."""
        return () if self.is_of_race else super().without_flops


@command("tune")
@start_options
@heading("The search")
@option(
    "--over CHOICE[=VALUE,...]",
    "Choices to search: names with commas, or one with its values as attention=sdpa,my_repo.flash:attn; may be "
    f"repeated. [default: those of the preset or with several values, else {', '.join(USUAL_OVER)}]",
    multiple=True,
    complete=searched,
)
@option(
    "--goal",
    "What to improve: the time of a step, tokens a second, tokens a joule, or the peak of memory. With step and "
    "memory each step trains the same tokens; a batch that is searched is then a micro-batch.",
    type=Choice(GOALS),
    default="step",
)
@option(
    "--within", "Limit of a candidate's peak: 70GB, or 80% of the device's memory.", type=Parsed("MEMORY", limit_of)
)
@option(
    "--budget", "Time for the search: 90s, 10m or 2h.", name="budget_s", type=Parsed("TIME", budget_of), default="10m"
)
@option("--dry-run", "Run nothing: show candidates, predictions and the plan.", is_flag=True)
@heading("Which device")
@gpu_option
@option(
    "--session SESSION",
    "With --dry-run: take the speed of the device from the measured cells of this session.",
    complete=sessions,
)
@trust_option
@option_under(
    "Output",
    "--save-preset NAME",
    "Save the best candidate as a preset of your own; over an earlier one only with --force.",
)
@file_options("table")
def tune(
    *,
    dry_run: bool,
    gpu: str | None,
    session: str | None,
    trusted: bool,
    save_preset: str | None,
    to: Destination,
    session_dir: Path,
    **asked: Any,
) -> str | int:
    """Search the combination of choices whose step is fastest, by a race of real steps.

    The options name the starting point, --over the choices that are searched. What cannot run here, or cannot fit by
    prediction, is left out. The others get a few steps each, the better ones more, the best two run in turns, until the
    intervals decide or the budget ends. A budget too short for all candidates goes to each value by itself, then to
    the combinations that promise most. Exits with 0 when there is a best, 1 when none could be measured, 130 when
    interrupted, with the best so far.
    """
    began = time.monotonic()
    if trusted and session is None:
        raise click.UsageError("--trust is for the log of a session; name it with --session")
    search = asked_search(**asked)
    overwrite = to.overwrite and is_given("overwrite")  # of a preset, which is no output to be made again
    if save_preset:
        check_new(save_preset, overwrite=overwrite)
    if dry_run:
        if save_preset:
            raise click.UsageError("--save-preset saves the best of a race; leave out --dry-run")
        state = store.load(store.find(session, session_dir)) if session else None
        return show_plan(search, gpu, to, state, trusted=trusted)
    if gpu is not None or session is not None:
        raise click.UsageError(f"{'--gpu' if gpu else '--session'} is for a forecast; give --dry-run too")
    run = RaceRun()
    bench = Bench(run.sink, session_dir=session_dir, explain_oom=False)
    tuner = Tuner(bench, next_step, began=began)

    def work() -> None:
        (base,) = bench.resolve(search.start).cells()
        tuning = search.tuning(base)
        bench.trust.name(tuning)
        started = started_of(tuning, bench.probe(), partial(predictions_of, bench.predictor), began)
        tuner.run(started, command_of_search(tuning))

    code = carry_out(bench, run, work, Outputs(lambda state: race_text(state, to.format), to))
    return code if save_preset is None else _saved(run.state, save_preset, code, overwrite=overwrite)


def race_text(state: SessionState, format_: str) -> str:
    """The session's race in a format; empty if it has none."""
    race = race_of(state)
    if race is None:
        return ""
    if format_ == "json":
        return json_text(race_document(race, state.cells))
    if format_ == TERMINAL and race.best is None:
        return on_terminal(["\n".join([finding(race), *failure_lines(race)])])
    tables = [race_table(race, state.cells), *filter(None, [gains_table(race)])]
    if format_ in (TERMINAL, "table"):
        return laid_out([finding(race), *tables, *next_lines(race)], format_)
    return shown(tables, format_)


def asked_search(
    *, over: Sequence[str], goal: Goal, within: Mapping[str, Any] | None, budget_s: float, **choices: Any
) -> Search:
    """The search that the options ask for. Raises `SpecError` for what can be seen to be wrong before it runs."""
    given = {name: value for name, value in choices.items() if value is not None and value != ()}
    warmup, steps = (given.pop(name, usual) for name, usual in zip(("warmups", "steps"), VISIT, strict=True))
    visit = (_visit_steps("warmup", warmup), _visit_steps("steps", steps))
    named = given.get("preset_name")
    if named is None and given.get("workload") != "collective":
        usual = "train-step" if given.get("workload", LANGUAGE_MODEL) == LANGUAGE_MODEL else "forward+backward"
        given.setdefault("passes", (usual,))
    sweep = sweep_from(**given, of_another_too=_OWN if ":" in "".join(over) else ())
    texts = tuple(over) or (preset(named).over if named else ())
    own = {name: given[name] for name in _OWN if name in given}
    search = search_of(sweep, texts, goal, budget_s, dict(within or {}), visit=visit, **own)
    search.check()
    return search


def _visit_steps(option: str, asked: object) -> int:
    """The one number of steps that an option has. Raises `SpecError` for several, and for automatic ones."""
    given = asked if isinstance(asked, tuple) and not isinstance(asked, Auto) else (asked,)
    if len(given) == 1 and isinstance(given[0], int):
        return given[0]
    words = "by themselves" if isinstance(asked, Auto) else ",".join(map(str, given))
    raise SpecError(option, words, "visits of a race are repeats of one length; give one number, such as 5")


def _saved(state: SessionState, name: str, code: int, *, overwrite: bool) -> int:
    """Save the best candidate as a preset, and say so; the exit code."""
    race = race_of(state)
    if race is None or race.best is None:
        click.echo("no preset saved: no candidate could be measured", err=True)
        return code
    doubt = f"; in doubt: {race.best.why}" if race.best.why else ""
    preset = Preset(name, preset_line(race, race.best), sweep_of_candidate(race.tuning, race.best.spec))
    try:
        path = save(preset, overwrite=overwrite)
    except PresetError as error:
        click.echo(f"no preset saved: {error}", err=True)
        return code or EXIT_CELL_FAILED
    click.echo(f"preset {name}: {path}{doubt}", err=True)
    return code


reword(
    tune,
    "N",
    passes=f"What is timed: {', '.join(PASSES)}. [default: train-step; of an operation alone forward+backward]",
    warmups=f"Warm-up steps of a visit. [default: {VISIT[0]}]",
    steps=f"Measured steps of a visit. [default: {VISIT[1]}]",
    interval=None,
    timers=None,
)


def show_plan(
    search: Search,
    gpu: str | None,
    to: Destination,
    state: SessionState | None = None,
    *,
    trusted: bool = False,
) -> str:
    """The plan of a search on this machine, or on the GPU of that name, as text; empty when it went to a file. `state`
    is a session whose cells tell how fast it is; `trusted`: the code that it names, too. Raises `UserError` or
    `click.ClickException`."""
    asked = settle(search.start, gpu)
    tuning = search.tuning(asked.specs[0])
    target = asked.targets[tuning.base.device]
    here = asked.machine
    refusal = here.environment.refusal if here else lacking(_device(find_gpu(gpu or target.name)))
    with predicting(asked, [tuning], state=state, trusted=trusted) as predicts:
        counter = Counter("predicting candidates")
        found = shortlist(tuning, target, refusal, partial(predictions_of, predicts, on_each=counter), every=True)
        counter.clear()
    plan = plan_of(tuning, found, target, state)
    if to.format == "json":
        return to.deliver(json_text(plan_document(plan)))
    if to.format in (TERMINAL, "table"):
        return to.deliver(laid_out([plan_heading(plan), plan_table(plan)], to.format))
    return to.show([plan_table(plan)])


def _device(gpu: GpuModel) -> DeviceInfo:
    """A GPU that need not be here, as torch would tell of it."""
    return DeviceInfo(
        name="cuda:0",
        label=gpu.name,
        precisions=gpu.precisions,
        memory_bytes=gpu.memory_bytes,
        capability=gpu.capability,
    )
