"""`bench --launcher`: submits the cells of a sweep as jobs, and follows them without a screen. `cs336-tui watch` and
`cancel`: sessions that run elsewhere or in another process. `run-job` and `run-ranks`: the processes of a job, on the
machines that run it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from cs336_tui.cli.files import Destination, data_options, is_given
from cs336_tui.cli.flags import (
    COUNT,
    Parsed,
    device_interval_option,
    session_argument,
    session_dir_option,
    take_over_option,
    trust_option,
)
from cs336_tui.cli.help import Choice, command, heading, option, under
from cs336_tui.cli.run import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    HeadlessRun,
    Outputs,
    StopOnSignal,
    carry_out,
    hand_over,
    name_of_log,
    renderer,
)
from cs336_tui.cli.suggestions import themes
from cs336_tui.config.choices import command_of
from cs336_tui.config.order import Order, in_order, in_rounds, usual_order
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import UNRESOLVED, Sweep
from cs336_tui.events import events as ev
from cs336_tui.runner.jobs.bench import JobsBench
from cs336_tui.runner.jobs.job import (
    JobRequest,
    LaunchChoice,
    folder_of,
    is_array,
    log_path,
    read_choice,
    read_request,
)
from cs336_tui.runner.queue import queued
from cs336_tui.session import store
from cs336_tui.session.lock import Writer, writer_of
from cs336_tui.stats.quantities import counted

_STOPS_WITHIN_S = 20.0
_OF_CHOICE = ("launcher", "partition", "nodes", "gpus_per_node", "time", "form", "parameters")
_OPTIONS = {"parameters": "slurm", "form": "as"}
"""Options of the fields of a choice that are called otherwise."""
OF_REQUEST = ("ddof", "timeout_s", "explain_oom", "check_fit", "nvtx")
"""Options of a run that jobs take as they are."""


def _sbatch_option(text: str) -> tuple[str, str]:
    """An option of ``sbatch``, which may have no value, such as ``exclusive``."""
    name, equals, value = text.partition("=")
    if not name.strip() or bool(equals) > bool(value.strip()):
        raise ValueError("expected KEY or KEY=VALUE")
    return name.strip(), value.strip()


launch_options = under(
    "Jobs elsewhere",
    option(
        "--launcher slurm",
        "Run the cells as Slurm jobs, and watch them from here.",
        type=Choice(["slurm", "local"]),
    ),
    option("--partition NAME", "Slurm partition."),
    option("--nodes N", "Nodes of one allocation that runs all cells.", type=COUNT),
    option("--gpus-per-node N", "GPUs of each node.", type=click.IntRange(0)),
    option("--time LIMIT", "Time limit of a job, as Slurm writes it: 0:30 is half a minute, 1:00:00 an hour."),
    option(
        "--slurm",
        "Another sbatch option, such as account=lab; may be repeated.",
        name="parameters",
        multiple=True,
        type=Parsed("KEY[=VALUE]", _sbatch_option),
    ),
    option(
        "--as",
        "array: one job per cell; allocation: one job for all cells, in lanes. "
        "[default: array, unless nodes, GPUs or lanes are given]",
        name="form",
        type=Choice(["array", "allocation"]),
    ),
    option("--dry-run", "Only print what would be submitted.", is_flag=True),
    option("--detach", "Submit, print the session's name and return.", is_flag=True),
)
"""Options of jobs."""


def _option_of(field: str) -> str:
    return f"--{_OPTIONS.get(field, field).replace('_', '-')}"


def launch_choice(given: dict[str, Any]) -> LaunchChoice | None:
    """Take the options of jobs out of those given; None if the cells run here. Raises `click.UsageError`."""
    chosen = {name: given.pop(name) for name in _OF_CHOICE}
    if chosen["launcher"] is None:
        extra = [name for name, value in chosen.items() if value not in (None, ())]
        extra += [name for name in ("dry_run", "detach") if given[name]]
        if extra:
            raise click.UsageError(f"{_option_of(extra[0])} is for jobs; add --launcher slurm")
        return None
    if chosen["launcher"] != "slurm" and (chosen["partition"] or chosen["parameters"]):
        raise click.UsageError("--partition and --slurm are for --launcher slurm")
    lanes = 0 if given.get("lanes") == "auto" else given.get("lanes")
    return LaunchChoice(**chosen, lanes=lanes)


def settings_of(session: str, **given: Any) -> JobRequest:
    """A request with the settings of these options, and no cells. Jobs sample devices rarer unless told how often."""
    interval = {"device_interval_s": given["device_interval_s"]} if is_given("device_interval_s") else {}
    taken = {name: given[name] for name in OF_REQUEST if name in given}
    skip = given.get("skip_after_oom")
    return JobRequest(session=session, job="", cells=(), skip_after_oom=skip is not False, **taken, **interval)


def follow(
    bench: JobsBench, run: HeadlessRun, begin: Callable[[], object], outputs: Outputs, *, detach: bool = False
) -> int:
    """Follow the jobs that `begin` submits or finds to their end, then print or write the data; the exit code. Ctrl-C
    leaves the jobs alone. `detach`: only print the session's name once they are submitted."""
    if detach:
        begin()
        bench.close()
        click.echo(bench.session)
        return EXIT_OK

    def stop() -> bool:
        run.stopped = True
        threading.Thread(target=bench.close, name="close", daemon=True).start()
        return True

    try:
        with StopOnSignal(stop):
            for path, render in outputs.files(bench.session):
                run.keep(path, render, overwrite=outputs.to.overwrite)
            begin()
            bench.work()
    finally:
        going_on = bench.jobs_going_on
        bench.close()
        run.progress.clear()
    if run.stopped and going_on:
        found = name_of_log(bench.log_path)
        name = bench.log_path.stem if found == "last" else found
        go, it = ("goes", "it") if going_on == 1 else ("go", "them")
        follow_it, cancel_it = f"`cs336-tui watch {name}` follows {it}", f"`cs336-tui cancel {name}` cancels {it}"
        click.echo(f"{counted(going_on, 'job')} {go} on; {follow_it}, {cancel_it}", err=True)
    code = hand_over(run, outputs, bench.log_path, bench.log_problem)
    return EXIT_INTERRUPTED if run.stopped and not bench.is_over else code


def has_jobs(log: Path) -> bool:
    """True if the cells of the session run in jobs."""
    return read_choice(folder_of(log.absolute())) is not None


def rounds_of(
    sweep: Sweep, known: set[CellSpec], order: Order | None, repeats: int
) -> tuple[tuple[CellSpec, int], ...]:
    """The cells of a sweep that are not known yet, in their order and each with its repeat; they are known from now."""
    specs = [spec for spec in sweep.cells() if spec not in known]
    known.update(specs)
    return tuple(in_rounds(in_order(specs, order or usual_order(sweep.lanes)), repeats))


def queued_cells(
    sweeps: Sequence[Sweep], choice: LaunchChoice, repeats: int, order: Order | None, ddof: int
) -> list[ev.CellsQueued]:
    """The cells of the sweeps as a session of jobs queues them; nothing is asked of this machine. The devices `auto`
    and `every` are a GPU if GPUs are asked for."""
    found: list[ev.CellsQueued] = []
    known: set[CellSpec] = set()
    usual = "cuda:0" if choice.gpus_per_node else "cpu"
    for sweep in sweeps:
        if not is_array(choice):  # cells share the devices of a machine
            sweep = msgspec.structs.replace(sweep, lanes=choice.lanes or "auto")
        devices = dict.fromkeys(usual if name in UNRESOLVED else name for name in sweep.devices)
        resolved = sweep.with_devices(tuple(devices))
        if words := resolved.once_words:
            click.echo(f"note: {words}", err=True)
        first, cells = sum(len(each.specs) for each in found), rounds_of(resolved, known, order, repeats)
        command = " ".join([command_of(resolved, ddof), *words_of(choice)])
        found += queued(range(first, first + len(cells)), cells, command, ddof=ddof, reports=resolved.reports)
    return found


def words_of(choice: LaunchChoice) -> list[str]:
    """The options of a choice, as on a command line."""
    words: list[str] = []
    for field in _OF_CHOICE:
        given = getattr(choice, field)
        several = [f"{key}={value}" if value else key for key, value in given] if field == "parameters" else [given]
        words += [word for each in several if each is not None for word in (_option_of(field), shlex.quote(str(each)))]
    return words


@command("watch")
@session_argument
@heading("Session")
@take_over_option
@trust_option
@heading("The app")
@option("--theme NAME", "Colour theme of the app.", complete=themes)
@option(
    "--low-bandwidth/--no-low-bandwidth", "The app writes less to the terminal, for slow connections.", default=None
)
@data_options
def watch(
    *,
    session: str,
    session_dir: Path,
    take_over: bool,
    trusted: bool,
    to: Destination,
    summary: str | None,
    **of_app: Any,
) -> int:
    """Follow a session that another process runs, or its jobs: in the app on a terminal, else until all is over, then
    print its data.

    SESSION is an id, a unique prefix of one, `last` or a path. Closing it changes nothing for the session. With an
    option of the data, such as --format, it follows without the app on a terminal, too.
    """
    opens_app = not (take_over or trusted or any(map(is_given, ("format_", "output", "summary", "overwrite"))))
    opens_app = opens_app and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not opens_app and (name := next((name for name, value in of_app.items() if value is not None), None)):
        raise click.UsageError(f"--{name.replace('_', '-')} is of the app, which does not open here; leave it out")
    path = store.find(session, session_dir)
    if opens_app:
        from cs336_tui.cli.launch import open_watch

        return open_watch(path, **of_app)
    run = HeadlessRun()
    bench = JobsBench(run.sink, path, trusted=trusted)
    outputs = Outputs(renderer(to), to, summary)
    return follow(bench, run, lambda: bench.watch(run.recall, take_over=take_over), outputs)


@command("cancel")
@session_argument
@trust_option
@session_dir_option
def cancel(*, session: str, trusted: bool, session_dir: Path) -> str:
    """Cancel the jobs of SESSION, or stop the process that runs it on this machine."""
    path = store.find(session, session_dir)
    if not has_jobs(path):
        return _stop(path, writer_of(path))
    run = HeadlessRun()
    bench = JobsBench(run.sink, path, trusted=trusted)
    try:
        with StopOnSignal(lambda: False):
            bench.watch(run.recall)
            number = bench.jobs_going_on
            if not bench.cancel():
                return f"session {path.stem}: no job goes on"
            bench.work()
    finally:
        bench.close()
        run.progress.clear()
    return f"session {path.stem}: {counted(number, 'job')} cancelled"


def _stop(path: Path, writer: Writer | None) -> str:
    """Ask the writer of a session without jobs to stop, and wait until it has."""
    if writer is None:
        return f"session {path.stem}: nothing runs"
    if writer.host != socket.gethostname():
        raise click.ClickException(f"session {path.stem} is written by {writer}; cancel it there")
    os.kill(writer.pid, signal.SIGTERM)
    give_up_at = time.monotonic() + _STOPS_WITHIN_S
    while writer_of(path) == writer:
        if time.monotonic() > give_up_at:
            raise click.ClickException(f"session {path.stem}: {writer} was asked to stop and still runs")
        time.sleep(0.05)
    return f"session {path.stem}: stopped"


@click.command("run-job", hidden=True)
@click.argument("request", type=click.Path(dir_okay=False, path_type=Path))
@option("--node", "A further node of the job; it runs its share alone.", type=click.IntRange(0), default=0)
@option("--trust", "Import the code that the request names, wherever it is.", name="trusted", is_flag=True)
def run_job(request: Path, node: int, *, trusted: bool) -> int:
    """Run the cells of a job as the file REQUEST tells; its log is written beside that file."""
    from cs336_tui.runner.bench import Bench
    from cs336_tui.runner.jobs.run import allocation_of, await_log, nodes_of, while_wanted, work_here, work_over_nodes
    from cs336_tui.runner.trust import check_log

    asked = read_request(request)
    check_log(asked.session, (cell.spec for cell in asked.cells), trusted=trusted)
    log = log_path(request.parent, asked.job, node)
    run = HeadlessRun()
    options = {
        "session_dir": log.parent,
        "session": log.stem,
        **{name: getattr(asked, name) for name in (*OF_REQUEST, "skip_after_oom", "device_interval_s")},
    }
    with ExitStack() as around:
        if asked.resources.nodes > 1 and not node:
            allocation = allocation_of(asked.resources.nodes)
            nodes = nodes_of(asked, allocation)
            bench = Bench(run.sink, nodes=nodes, **options)
            work = partial(work_over_nodes, request, asked, bench, nodes, allocation, run.recall, trusted=trusted)
        else:
            bench = Bench(run.sink, **options)
            if node:
                from cs336_tui.runner.node_process import Lifeline

                around.enter_context(Lifeline().held(bench.cancel))
                await_log(log)
            work = partial(work_here, asked, bench, run.recall, trusted=trusted)
        around.enter_context(while_wanted(request, bench.cancel))
        return carry_out(bench, run, work, Outputs(lambda _: "", Destination("")))


@click.command("run-ranks", hidden=True)
@device_interval_option
def run_ranks(device_interval_s: float) -> None:
    """Start the ranks of a cell that standard input names, and tell their events on standard output.

    `run-job` starts it on each node of an allocation, for a cell of more ranks than a node has room for.
    """
    from cs336_tui.runner.nodes import serve

    serve(device_interval_s)
