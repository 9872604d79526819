"""Reference points beside a session's cells, and a session's cells kept as reference points."""

from __future__ import annotations

from pathlib import Path

import click

from cs336_tui.analysis.fields import machine
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, merge, pooled, title_of
from cs336_tui.analysis.published import own, published
from cs336_tui.analysis.reference import add_from, matching, remark_on, sentence
from cs336_tui.analysis.reference_profiles import profiles_said
from cs336_tui.cli.files import file_options
from cs336_tui.cli.flags import options, session_argument, session_dir_option
from cs336_tui.cli.help import command, heading
from cs336_tui.cli.targets import deliver
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.writing.formats import answer
from cs336_tui.session import store
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted


def reference_view(session: str, session_dir: Path, own_points: Path | None = None) -> str:
    """A line for each measured cell of a session: its time here, those published and one's own, and what differs; then
    each peak of memory and each part's kernels, with a line for each published one.

    Raises `LogError` for a session that there is not, `ReferenceFileError` for reference points that cannot be read.
    """
    results, state = _results(session, session_dir)
    rows = (*published(), *own(own_points))
    groups = grouped(measured(results), lambda result: (result.spec, machine(result)))

    lines = [] if groups else ["No cell has a result yet."]
    for (spec, _), cells in groups.items():
        summary = pooled(cells, ddof_of(cells))
        if summary and summary.mean_s is not None:
            lines.append(sentence(spec, summary.mean_s, matching(spec, cells[0].cell.in_force, rows)))
    for said in profiles_said([state], results, rows):
        lines += ["", said.here]
        lines += [f"  {there}{f' ({caveats})' if caveats else ''}" for there, caveats in said.there]
    return "\n".join([*lines, "", f"Mind that {remark_on(result.spec for result in results)}."])


def keep_command(session: str, title: str, session_dir: Path, own_points: Path | None = None) -> str:
    """Keep a session's measured cells as reference points of one's own; says what was kept.

    Raises `ReferenceFileError` when there is nothing to keep or the title is taken.
    """
    added = add_from(_results(session, session_dir)[0], title, own_points)
    kept = f"kept {counted(len(added.rows), 'reference point')} as {title!r}"
    return "\n".join([kept, *(f"left out: {line}" for line in added.left_out)])


def _results(session: str, session_dir: Path) -> tuple[tuple[Result, ...], SessionState]:
    state = store.load(store.find(session, session_dir))
    return merge([(title_of(state), state)]), state


@command("reference")
@session_argument
@heading("Session")
@click.option(
    "--keep", metavar="TITLE", help="Only keep the session's results as reference points of your own, under TITLE."
)
@options(*file_options("table"))
@session_dir_option
def reference(
    session: str, keep: str | None, session_dir: Path, *, format_: str, output: Path | None, force: bool
) -> str:
    """Show published step times, peaks and kernels beside those of SESSION: as lines of text, or as tables."""
    if keep:
        if output is not None:
            raise click.UsageError(f"-o {output}: --keep writes no table; leave one of the two out")
        return keep_command(session, keep, session_dir)
    if format_ == "table":
        return deliver(reference_view(session, session_dir) + "\n", output, force=force)
    results, state = _results(session, session_dir)
    return deliver(answer(reference_tables(results, states=[state]), format_), output, force=force)
