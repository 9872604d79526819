"""`cs336-tui sessions`, `show`, `open`, `rename`, `annotate` and `delete`: the sessions in a folder, as text, and one
of what others recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from cs336_tui.cli.files import Destination, file_options, is_given, json_option, json_text
from cs336_tui.cli.flags import a_session, refuse, session_argument, session_dir_option, sessions_argument
from cs336_tui.cli.help import command, option_under
from cs336_tui.cli.streams import TERMINAL, StatusLines, laid_out
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.writing.tables import Column, Source, Table, attributes
from cs336_tui.export.writing.texts import in_brief, one_line
from cs336_tui.session import store
from cs336_tui.session.recordings.recording import FORMATS, Opening, open_recordings, phases_of
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import SessionInfo
from cs336_tui.stats.quantities import counted


def began(info: SessionInfo) -> str:
    """When the session began."""
    return info.begun or "at an unknown time"


def counts(info: SessionInfo) -> str:
    """The states of its cells, in words."""
    if info.problem:
        return "log damaged"
    left = "running or waiting" if info.stage == "running" else "left to run"
    parts = [(info.ok, "ok"), (info.oom, "out of memory"), (info.failed, "failed"), (info.skipped, "skipped")]
    parts.append((info.left, left))
    reports = f"; {counted(info.reports, 'report')}" if info.reports else ""
    return f"{info.cells}: " + (", ".join(f"{n} {word}" for n, word in parts if n) or "none") + reports


def jobs(info: SessionInfo) -> str:
    """The stages of its jobs as they were known last, in words; empty without jobs."""
    over = info.jobs - info.jobs_running - info.jobs_pending
    parts = [(info.jobs_running, "running"), (info.jobs_pending, "waiting"), (over, "over")]
    return f"{info.jobs}: " + ", ".join(f"{n} {word}" for n, word in parts if n) if info.jobs else ""


def _table(infos: Sequence[SessionInfo]) -> Table:
    """A row a session; a column in which no session says anything is left out."""
    numbers = ("cells", "ok", "oom", "failed", "left", "skipped")
    columns: tuple[Source[SessionInfo], ...] = (
        Column("session", left=True),
        Column("name", left=True, rank=1),
        lambda info: attributes(info, "host", "started_at", "stage", *numbers),
        Column("begun", left=True, rank=2, text=began),
        Column("machine", left=True, rank=4, text=lambda info: info.host),
        Column("devices", left=True, rank=5, read=lambda info: ", ".join(info.devices)),
        Column("cells", left=True, text=counts),
        Column("jobs", left=True, rank=3, text=jobs),
        Column("note", left=True, rank=6),
        lambda info: {"log": str(info.path)},
    )
    table = Table.of(infos, columns, label="sessions")
    empty = [column.key for column in table.columns[1:] if not any(table.texts(column.key))]
    return table.without(*empty)


@command("sessions")
@json_option
@file_options("table")
def sessions(session_dir: Path, *, to: Destination) -> str:
    """List the sessions on this machine, newest first."""
    infos = list(store.list_sessions(session_dir))
    if to.format == "json":
        return to.deliver(json_text(infos))
    if not infos and to.format in ("table", TERMINAL):
        return to.deliver(f"No session in {session_dir} yet. `cs336-tui` or `cs336-tui bench` makes one.\n")
    table = _table(infos)
    if to.format != "table":
        return to.show([table], "cs336-tui: sessions")
    from tabulate import tabulate

    rows = [[one_line(text) for text in row] for row in table.rows]
    headers = [column.header for column in table.columns]
    return to.deliver(tabulate(rows, headers, tablefmt="plain", disable_numparse=True) + "\n")


@command("show")
@session_argument
@file_options("table")
def show(session: str, session_dir: Path, *, to: Destination) -> str:
    """Show what SESSION is and its results: an id, a unique prefix of one, `last` or a path.

    In another format than table its results alone, as bench prints them.
    """
    return _show(store.find(session, session_dir), to)


def _show(path: Path, to: Destination) -> str:
    """A session as lines of text, with its results as markdown, or laid out for the terminal; else its results."""
    state = store.load(path)
    if to.format not in ("table", TERMINAL):
        from cs336_tui.export.catalogue import results_document

        return to.deliver(results_document(state, to.format, brief=to.is_brief))
    from cs336_tui.export.subjects.results import results_markdown, results_parts

    info = store.describe(state, path)
    rows = [("session", info.session + (f"  ({info.name})" if info.name else ""))]
    rows += [("note", info.note)] if info.note else []
    rows += [("begun", f"{began(info)} on {info.host or 'an unknown machine'}, torch {info.torch or 'unknown'}")]
    rows += [("cells", counts(info))]
    if info.standing.can_resume:
        rows += [("state", f"{info.standing.words}; `cs336-tui resume {info.session}` runs what is left")]
    if state.tuning:
        from cs336_tui.analysis.tuning import race_of
        from cs336_tui.export.subjects.tuning import finding

        if race := race_of(state):
            rows += [("race", finding(race))]
    rows += _jobs_of(state, info)
    for report in state.reports_on_cells:
        how = "" if report.status == "ok" else f": {report.status or 'running'}"
        rows.append(("report", f"{report.kind} of {report.spec.title}{how}"))
    rows.append(("log", str(path)))
    rows = [(label, in_brief(text, 1000)) for label, text in rows]
    kinds = {report.kind for report in state.reports_on_cells if report.content}
    hints: list[str] = []
    if named := [kind for kind in REPORTS if kind in kinds]:
        more = f" (or {', '.join(named[1:])})" if len(named) > 1 else ""
        hints = [f"`cs336-tui export {info.session} --report {named[0]}`{more} shows what a report found."]
    results = results_parts(state) if to.format == TERMINAL else [results_markdown(state, brief=to.is_brief)]
    return to.deliver(laid_out([*rows, *results, *hints], to.format))


_MOST_JOBS = 20


def _jobs_of(state: SessionState, info: SessionInfo) -> Iterator[tuple[str, str]]:
    """The jobs of a session as they were known last; those over without a word are not listed."""
    if not state.jobs:
        return
    going_on = info.jobs_running + info.jobs_pending
    hint = f"; `cs336-tui watch {info.session}` follows them" if going_on else ""
    yield "jobs", jobs(info) + hint
    told = [job for job in state.jobs.values() if job.stage != "over" or job.reason]
    for job in told[:_MOST_JOBS]:
        submitted, stage = job.submitted, "waiting" if job.stage == "pending" else job.stage
        where = f" on {job.node or submitted.where}" if job.node or submitted.where else ""
        why = f": {job.reason}" if job.reason else ""
        cells = counted(len(submitted.cells), "cell")
        yield "", f"job {submitted.job} ({submitted.launcher} {submitted.id}, {cells}) {stage}{where}{why}"
    if len(told) > _MOST_JOBS:
        yield "", f"and {len(told) - _MOST_JOBS} more"


@command("rename")
@a_session()
@click.argument("name")
@session_dir_option
def rename(session: str, name: str, session_dir: Path) -> str:
    """Give SESSION the name NAME, to be shown beside its id; an empty name takes it away."""
    return _annotated(session, session_dir, name=name)


@command("annotate")
@a_session()
@click.argument("note")
@session_dir_option
def annotate(session: str, note: str, session_dir: Path) -> str:
    """Give SESSION a note, which goes into its exports; an empty note takes it away."""
    return _annotated(session, session_dir, note=note)


def _annotated(session: str, session_dir: Path, **given: str) -> str:
    path = store.find(session, session_dir)
    store.annotate(path, **given)
    ((what, text),) = given.items()
    return f"session {path.stem}: {what} {text!r}" if text else f"session {path.stem}: no {what} any more"


@command("delete")
@sessions_argument
@option_under("Session", "--yes", "Do not ask.", is_flag=True)
@session_dir_option
def delete(sessions: tuple[str, ...], yes: bool, session_dir: Path) -> None:
    """Delete SESSION... for good; asks for each."""
    for path in list(dict.fromkeys(store.find(session, session_dir) for session in sessions)):
        info = store.info_of(path)
        if yes or click.confirm(f"Delete session {info.title} of {began(info)} ({counts(info)}) for good?", err=True):
            store.delete(path)
            click.echo(f"deleted {path.stem}")
        else:
            click.echo(f"kept {path.stem}")


@command("open", epilog=f"What can be opened: {', '.join(each.what for each in FORMATS)}.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@option_under(
    "Which cells",
    "--phase PHASE=RANGE",
    "Range that counts as this phase, besides the usual names, such as forward=model_fwd or optimizer='adam*'; "
    "may be repeated.",
    name="phases",
    multiple=True,
)
@file_options("table")
def open(*, files: Sequence[Path], phases: Sequence[str], session_dir: Path, to: Destination) -> str | int:
    """Make a session of traces, memory snapshots or nsys reports that others recorded; print its name.

    Each file becomes a cell for each device, several ranks of one run become one session. A session's log, or a folder
    of them, opens in the app; without a terminal, or with an option for output, as `show` prints it.

    \f
    Raises `UserError`; then there is no new session.
    """
    as_text = any(map(is_given, ("output", "format_", "overwrite", "verbose")))
    if logs := list(filter(store.is_own, files)):
        refuse(
            (len(files) > 1, f"{logs[0]}: a session is shown alone, one at a time; name it without other files"),
            (phases, "--phase is for recordings of others; leave it out for a session"),
        )
        path = store.find(str(files[0]), session_dir)
        if as_text or not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            return _show(path, to)
        from cs336_tui.cli.launch import open_app

        return open_app(session_dir=session_dir, opened=path)
    refuse((as_text, "-o, --format and -v are for the text of a session's log; a recording opens without them"))
    line = StatusLines(sys.stderr)

    def show_read(done: int, total: int) -> None:
        share = f" of {total / 1e6:,.0f} MB, {done / total:.0%}" if total else " MB"
        line.say(f"reading {done / 1e6:,.0f}{share}")

    try:
        return open_recordings(files, session_dir, Opening(show_read, phases_of(phases))).stem
    finally:
        line.clear()
