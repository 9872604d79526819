"""`cs336-tui bench`, `comm` and `resume`: run cells, or time collectives of ranks, without a screen; print their
data. `example`: code of one's own to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cs336_tui.cli.files import Destination, data_options
from cs336_tui.cli.flags import (
    bench_options,
    choice_options,
    comm_options,
    ddof_option,
    lanes_option,
    order_options,
    refuse,
    reports_option,
    session_argument,
    take_over_option,
    trust_option,
)
from cs336_tui.cli.help import Command, command, heading, option, option_under
from cs336_tui.cli.jobs import follow, has_jobs, launch_choice, launch_options, queued_cells, rounds_of, settings_of
from cs336_tui.cli.run import EXIT_OK, HeadlessRun, Outputs, carry_out, name_of_log, renderer, say_imports
from cs336_tui.cli.suggestions import offer
from cs336_tui.config.choices import command_of, sweep_from
from cs336_tui.config.meanings import examples
from cs336_tui.config.order import Order
from cs336_tui.config.presets import preset
from cs336_tui.config.problems import problem_of_preset
from cs336_tui.config.spec import AXES, CellSpec, SpecError
from cs336_tui.config.sweep import LaneCount, Sweep
from cs336_tui.config.values import BYTES_OF_ELEMENT
from cs336_tui.config.variants import expected
from cs336_tui.events.environment import fields_of_preset
from cs336_tui.events.events import Event
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.jobs.bench import JobsBench, job_cells, make_launcher
from cs336_tui.runner.jobs.job import folder_of, split
from cs336_tui.session import store
from cs336_tui.session.log import new_session_id
from cs336_tui.session.state import SessionState, fold
from cs336_tui.stats.quantities import counted

_OF_BENCH = (
    "session_dir", "ddof", "timeout_s", "device_interval_s", "in_process", "explain_oom", "check_fit", "nvtx",
)  # fmt: skip
"""Options that are arguments of `Bench`; all others but a few are choices."""


class _ShowingOwnCode(Command):
    """Its help ends with what code of one's own takes and returns."""

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Code of your own"):
            formatter.write_dl([(name, f"{each['call']}: {each['about']}") for name, each in examples().items()])
            formatter.write_text("`cs336-tui example NAME > mine.py` prints a file to start from.")


@command("example")
@click.argument("name", required=False, shell_complete=offer(lambda *_: examples()))
def example(*, name: str | None) -> str:
    """Print a file with code of one's own that runs as it is: an attention, model, norm, optimizer, loss or wrapper.
    Without NAME lists the names."""
    if name is None:
        return "\n".join(f"{key}: {each['about']}" for key, each in examples().items())
    if name not in examples():
        raise click.UsageError(f"example {name}: {expected(name, examples())}")
    found = examples()[name]
    return f"# {found['about']}.\n#\n# cs336-tui example {name} > mine.py\n# {found['run']}\n{found['code']}"


@command("bench", cls=_ShowingOwnCode)
@choice_options
@ddof_option
@data_options
@heading("How it runs")
@option("--in-process", "Run the cells in this process, as external profilers need it.", is_flag=True)
@option("--nvtx", "Mark steps, phases and parts with NVTX ranges; under nsys this is always on.", is_flag=True)
@reports_option
@lanes_option
@order_options
@launch_options
@bench_options
def bench(**given: Any) -> int:
    """Run every combination of the given choices, one cell after another.

    Comma lists make a sweep. Progress goes to standard error. Exits with 0 when all cells have a result
    (out-of-memory is one), 1 when a cell failed or something could not be written, 2 on bad usage, 130 when
    interrupted.
    """
    return run_sweeps(**given)


def run_sweeps(
    *,
    to: Destination,
    summary: str | None,
    repeats: int,
    order: Order | None,
    preset_name: str | None = None,
    **given: Any,
) -> int:
    """Run the cells that these options ask for, in a session, and print its data; the exit code."""
    settings = {name: given.pop(name) for name in _OF_BENCH}
    choice = launch_choice(given)
    dry_run, detach = given.pop("dry_run"), given.pop("detach")
    also = preset(preset_name).also if preset_name else ()
    sweep = sweep_from(preset_name=preset_name, of_another_too=given if also else (), **given)
    _say_left_out(preset_name, sweep, given)
    if settings["in_process"]:
        refuse(
            (settings["timeout_s"], "--timeout cannot end a cell that runs --in-process; use one or the other"),
            (sweep.reports, "--reports need processes of their own; with --in-process say --reports none"),
            (
                max(sweep.ranks, default=1) > 1,
                "--ranks need processes of their own; leave out --in-process, or say --ranks 1",
            ),
            (sweep.lanes != 1, "--lanes need processes of their own; leave out --in-process, or say --lanes 1"),
            (choice, "--in-process is for cells that run here; leave out one of it and --launcher"),
        )
    others = list(_of_other_presets(also, given))
    run, outputs = HeadlessRun(), Outputs(renderer(to), to, summary)
    if choice is not None:
        log = settings.pop("session_dir") / f"{new_session_id()}.jsonl"
        request, launcher = settings_of(log.stem, skip_after_oom=sweep.oom_skip, **settings), make_launcher(choice)
        queued = queued_cells([sweep, *others], choice, repeats, order, request.ddof)
        if dry_run:
            click.echo(launcher.plan(split(job_cells(fold(queued)), choice, request), folder_of(log.absolute())))
            return EXIT_OK
        jobs = JobsBench(run.sink, log)
        code = follow(jobs, run, lambda: jobs.submit(queued, choice, request, launcher), outputs, detach=detach)
        if not detach:
            _say_more(preset_name, jobs.log_path, run.state)
        return code
    runner = Bench(run.sink, skip_after_oom=sweep.oom_skip, **settings)

    def work() -> None:
        known: set[CellSpec] = set()
        for each in (sweep, *others):
            resolved = runner.resolve(each, may_leave_out=fields_of_preset(preset_name, given))
            cells, command = rounds_of(resolved, known, order, repeats), command_of(resolved, runner.ddof)
            runner.add(cells, command, resolved.reports, lanes=runner.lanes_of(resolved))
            if len(resolved.checkpoints) > 1:  # their table holds measured peaks against predicted ones
                runner.predict_now(resolved.cells(), run.progress.say)
        runner.work()

    code = carry_out(runner, run, work, outputs)
    _say_more(preset_name, runner.log_path, run.state)
    return code


def _say_more(preset_name: str | None, log: Path, state: SessionState) -> None:
    """Name the command that makes the parts of the preset's problem, if it is of one, and of several ranks the one that
    measures what their communication costs."""
    shared = (cell.spec for cell in state.cells.values() if cell.status == "ok" and cell.spec.ranks > 1)
    if spec := next((spec for spec in shared if spec.parallel != "none" and not spec.is_collective), None):
        from cs336_tui.export.subjects.data_parallel import in_turns_command

        click.echo(f"exposed communication of {spec.parallel}: {in_turns_command(spec)}", err=True)
    if name := problem_of_preset(preset(preset_name).name if preset_name else ""):
        command = f"cs336-tui export {name_of_log(log)} --problem {name}"
        click.echo(f"its parts, with their tables and figures: {command}", err=True)


def _of_other_presets(names: Iterable[str], given: Mapping[str, Any]) -> Iterator[Sweep]:
    """The sweeps of presets that are run with another one, changed alike; says which choices they keep as they were."""
    for name in names:
        kept, found = dict(given), None
        while found is None:
            try:
                found = sweep_from(preset_name=name, of_another_too=kept, **kept)
            except SpecError as error:
                fields = [axis.sweep for axis in AXES.values() if axis.name == error.field]
                if not any(kept.pop(field, None) for field in fields):
                    raise
                click.echo(f"note: {name}, which belongs to it, keeps its {error.field}: {error}", err=True)
        _say_left_out(name, found, kept)
        yield found


def _say_left_out(name: str | None, sweep: Sweep, given: Mapping[str, Any]) -> None:
    """Say which groups of blocks of a preset its smallest model has too few blocks for."""
    left_out = [blocks for blocks in preset(name).sweep.checkpoints if blocks not in sweep.checkpoints] if name else []
    if left_out and not given.get("checkpoints"):
        words = ",".join(map(str, left_out))
        click.echo(f"note: --checkpoint {words} is left out: the smallest model has fewer blocks", err=True)


@command("resume")
@session_argument
@option_under("Session", "--failed", "Also run failed and killed cells again.", is_flag=True)
@take_over_option
@trust_option
@lanes_option
@option_under(
    "Jobs elsewhere", "--detach", "Of a session of jobs: submit, print the session's name and return.", is_flag=True
)
@data_options
@bench_options
def resume(
    *,
    session: str,
    session_dir: Path,
    failed: bool,
    take_over: bool,
    trusted: bool,
    lanes: LaneCount | None,
    detach: bool,
    to: Destination,
    summary: str | None,
    oom_skip: bool | None,
    **settings: Any,
) -> int:
    """Run the cells of SESSION that have no result yet, into the same session.

    SESSION is an id, a unique prefix of one, `last` or a path. Then print the data of the whole session. A race goes on
    with the rest of its budget, and its outcome is printed. Says what code it imports, and from where; code outside of
    the current folder only with --trust.
    """
    from cs336_tui.analysis.next_step import next_step
    from cs336_tui.cli.tune import RaceRun, race_text
    from cs336_tui.runner.tuning import Tuner

    path, render, run = store.find(session, session_dir), renderer(to), RaceRun()
    outputs = Outputs(lambda state: race_text(state, to.format) if run.is_of_race else render(state), to, summary)
    if has_jobs(path):
        if lanes is not None:
            raise click.UsageError(f"--lanes: session {path.stem} is of jobs, which go on with the lanes that they had")
        request = settings_of(path.stem, skip_after_oom=oom_skip, **settings)
        jobs = JobsBench(run.sink, path, trusted=trusted)

        def begin() -> None:
            again = jobs.resume(request, run.recall, failed=failed, take_over=take_over, show=say_imports)
            done = f"{counted(len(again), 'cell')} submitted anew" if again else "nothing left to submit"
            click.echo(f"session {path.stem}: {done}; jobs that are not over: {jobs.jobs_going_on}", err=True)

        return follow(jobs, run, begin, outputs, detach=detach)
    if detach:
        raise click.UsageError(f"--detach is for sessions of jobs; session {path.stem} runs here")
    runner = Bench(run.sink, session_dir=path.parent, session=path.stem, skip_after_oom=oom_skip, **settings)
    tuner = Tuner(runner, next_step)

    def recall(history: Sequence[Event]) -> None:
        run.recall(history)
        tuner.recall(history)

    def work() -> None:
        cells = runner.resume(
            recall, failed=failed, take_over=take_over, lanes=lanes, trusted=trusted, show=say_imports
        )
        if tuner.state.has_unfinished_race:
            run.went_on = True
            click.echo(f"session {path.stem}: the race goes on with {tuner.left_words} of its budget", err=True)
            tuner.go_on()
        else:
            click.echo(said(store.describe(run.state, path), len(cells)), err=True)
        runner.work()

    return carry_out(runner, run, work, outputs)


def said(info: store.SessionInfo, waiting: int) -> str:
    """The cells that resuming will run, in one line."""
    done = info.cells - waiting - info.skipped
    what = f"{waiting} of {counted(info.cells, 'cell')} left to run" if waiting else "nothing left to run"
    skipped = f", {info.skipped} stay skipped" if info.skipped else ""
    have = f"{done} of {counted(info.cells, 'cell')} have a result"
    return f"session {info.title}, begun {info.begun or '?'}: {have}{skipped}; {what}"


@command("comm")
@comm_options
@ddof_option
@data_options
@lanes_option
@order_options
@launch_options
@bench_options
def comm(**given: Any) -> int:
    """Time operations of torch.distributed: every combination of operation, size, ranks, backend and precision.

    A step is the slowest rank's; each begins at a barrier. Comma lists make a sweep. Before it is timed, an operation
    runs once on known numbers and is checked. Sizes are of the whole array: 10MB is 10^7 bytes, 10MiB 10 x 2^20.
    algbw is the size over the mean time, busbw that times 2(n-1)/n of all-reduce, (n-1)/n of all-gather,
    reduce-scatter and all-to-all, 1 of broadcast, for n ranks. Progress and exit codes are those of bench.
    """
    for name in given["precisions"] or ():
        if name not in BYTES_OF_ELEMENT:
            raise SpecError("dtype", name, f"a message is {' or '.join(BYTES_OF_ELEMENT)}")
    return run_sweeps(workload="collective", in_process=False, nvtx=False, **given)
