"""The commands. Starts quickly: what only one command needs is imported in that command."""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from cs336_tui import __version__
from cs336_tui.cli.flags import (
    DIRECTORY,
    FILE,
    WORDS,
    choice_options,
    data_options,
    device_interval_option,
    explain_option,
    fit_check_option,
    oom_option,
    options,
    order_options,
    session_argument,
    session_dir_option,
    timeout_option,
)
from cs336_tui.cli.report_commands import REPORT_COMMANDS
from cs336_tui.cli.trust_commands import TRUST_COMMANDS
from cs336_tui.export.texts import in_brief


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cs336-tui", message="%(prog)s %(version)s")
@click.option("--replay", type=FILE, help="Play a session log through the app instead of running benchmarks.")
@click.option("--speed", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Replay speed; 0: at once.")
@click.option("--theme", metavar="NAME", help="Start with this theme.")
@click.option(
    "--refresh",
    type=click.FloatRange(min=0.2, max=30),
    default=2.0,
    show_default=True,
    metavar="HZ",
    help="Screen updates a second during a run.",
)
@click.option("--low-bandwidth", is_flag=True, help="Write less to the terminal, for slow connections.")
@choice_options
@click.option("--summary", type=FILE, help="Keep a session summary here, rewritten after every finished cell.")
@click.option("--ddof", type=click.IntRange(0, 1), default=1, show_default=True, help="std divides by n - ddof.")
@timeout_option
@session_dir_option
@device_interval_option
@click.pass_context
def cli(context: click.Context, /, **options: Any) -> None:
    """Benchmark Transformer training steps, live in your terminal.

    Without a command, opens the app, its panes filled with the choices given here. `cs336-tui bench` takes the same
    choices and runs them without a screen.
    """
    if context.invoked_subcommand is None:
        _open_app(**options)


@cli.command(short_help="Run benchmarks without the app; data on standard output.")
@choice_options
@click.option("--ddof", type=click.IntRange(0, 1), default=1, show_default=True, help="std divides by n - ddof.")
@options(*data_options)
@click.option("--in-process", is_flag=True, help="Run the cells in this process, for external profilers.")
@click.option("--nvtx", is_flag=True, help="Mark steps, phases and parts for nsys; always so when it is running.")
@options(*order_options)
@oom_option
@explain_option
@fit_check_option
@timeout_option
@session_dir_option
@device_interval_option
def bench(**options: Any) -> NoReturn:
    """Run every combination of the given choices, one cell after another.

    Comma lists make a sweep. Progress goes to standard error. Exits with 0 when all cells have a result
    (out-of-memory is one), 1 when a cell failed or something could not be written, 2 on bad usage, 130 when
    interrupted.
    """
    from cs336_tui.cli.bench import bench_command

    sys.exit(bench_command(**options))


@cli.command(short_help="Say what this machine offers and what is missing.")
def doctor() -> None:
    """Say what this machine offers for benchmarks and what is missing."""
    from cs336_tui.cli.doctor import report

    click.echo(report())


@cli.group("presets", invoke_without_command=True, short_help="List the presets; `presets show NAME` shows one.")
@session_dir_option
@click.pass_context
def presets(context: click.Context, session_dir: Path | None) -> None:  # noqa: ARG001  # every command takes it
    """List the presets: named sweeps of each handout edition, and your own."""
    if context.invoked_subcommand is None:
        from cs336_tui.cli.presets import list_text

        text, problems = list_text()
        click.echo(text)
        for problem in problems:
            click.echo(f"cs336-tui: {problem}", err=True)


@presets.command("show", short_help="Show one preset as TOML.")
@click.argument("name")
@session_dir_option
def presets_show(name: str, session_dir: Path | None) -> None:  # noqa: ARG001
    """Show what the preset NAME holds, as TOML."""
    from cs336_tui.cli.presets import show_text

    click.echo(show_text(name))


@cli.command("resume", short_help="Run the cells of a session that have no result yet.")
@session_argument
@click.option("--failed", is_flag=True, help="Also run those again that failed or were killed.")
@click.option("--take-over", is_flag=True, help="Whoever is named as the session's writer is surely gone.")
@options(*data_options)
@oom_option
@explain_option
@fit_check_option
@timeout_option
@session_dir_option
@device_interval_option
def resume(**options: Any) -> NoReturn:
    """Run exactly the cells of SESSION that have no result, into the same session.

    SESSION is an id, a unique prefix of one, `last` or a path. Then print the data of the whole session.
    """
    from cs336_tui.cli.resume import resume_command

    sys.exit(resume_command(**options))


@cli.command("sessions", short_help="List the sessions on this machine.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@session_dir_option
def sessions(session_dir: Path | None, as_json: bool) -> None:
    """List the sessions on this machine, newest first."""
    from cs336_tui.cli.sessions import list_command

    click.echo(list_command(session_dir, as_json=as_json))


@cli.command("show", short_help="Show one session and its results.")
@session_argument
@session_dir_option
def show(session: str, session_dir: Path | None) -> None:
    """Show what SESSION is and its results: an id, a unique prefix of one, `last` or a path."""
    from cs336_tui.cli.sessions import show_command

    click.echo(show_command(session, session_dir))


@cli.command("rename", short_help="Give a session a name.")
@click.argument("session")
@click.argument("name")
@session_dir_option
def rename(session: str, name: str, session_dir: Path | None) -> None:
    """Give SESSION the name NAME, to be shown beside its id; an empty name takes it away."""
    from cs336_tui.cli.sessions import annotate_command

    click.echo(annotate_command(session, session_dir, name=name))


@cli.command("annotate", short_help="Give a session a note.")
@click.argument("session")
@click.argument("note")
@session_dir_option
def annotate(session: str, note: str, session_dir: Path | None) -> None:
    """Give SESSION a note, which goes into its exports; an empty note takes it away."""
    from cs336_tui.cli.sessions import annotate_command

    click.echo(annotate_command(session, session_dir, note=note))


@cli.command("delete", short_help="Delete sessions for good; asks first.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@session_dir_option
def delete(sessions: tuple[str, ...], yes: bool, session_dir: Path | None) -> None:
    """Delete SESSION... for good; asks for each."""
    from cs336_tui.cli.sessions import delete_command

    for line in delete_command(sessions, session_dir, yes=yes):
        click.echo(line)


@cli.command("compare", short_help="Compare two sessions or two cells.")
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@session_dir_option
def compare(a: str, b: str, session_dir: Path | None, as_json: bool) -> None:
    """Compare the step times of A with those of B: ratio, its 95 % interval and a verdict.

    Each is a session (an id, a unique prefix of one, `last` or a path) or one cell of it, SESSION:N, counted from 1.
    """
    from cs336_tui.cli.compare import compare_command

    click.echo(compare_command(a, b, session_dir, as_json=as_json))


@cli.command("reference", short_help="Published step times beside a session's, or a session's kept as such.")
@session_argument
@click.option("--keep", metavar="TITLE", help="Keep the session's results as reference points of your own instead.")
@session_dir_option
def reference(session: str, keep: str | None, session_dir: Path | None) -> None:
    """Show published step times beside those of SESSION; `export --reference` makes a table of them."""
    from cs336_tui.cli.reference import keep_command, reference_view

    click.echo(keep_command(session, keep, session_dir) if keep else reference_view(session, session_dir))


class _ListingLayouts(click.Command):
    """Its help ends with what `--layout` takes."""

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from cs336_tui.export.writeups import LAYOUTS

        with formatter.section("Layouts"):
            formatter.write_dl([(name, layout.about) for name, layout in LAYOUTS.items()])


@cli.command("export", cls=_ListingLayouts, short_help="Tables and figures of sessions, for a write-up.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option(
    "--pivot", "pivot_on", metavar="ROWS:COLUMNS", help="A pivot, such as size:pass or size,context:precision; auto."
)
@click.option(
    "--value",
    type=click.Choice(["mean", "std", "median", "speedup", "memory", "tokens"]),
    help="What the pivot shows. [default: mean]",
)
@click.option(
    "--baseline", multiple=True, metavar="KEY=VALUE", help="Over what the speed-up is, such as precision=fp32."
)
@click.option("--layout", metavar="NAME", help="A kind of table found in write-ups; listed below.")
@click.option("--columns", type=WORDS, help="Columns of the results table, such as size,pass,mean,std.")
@click.option("--reference", is_flag=True, help="Own cells beside published ones.")
@click.option("--compare", is_flag=True, help="The first of two sessions against the second.")
@click.option(
    "--report",
    type=click.Choice(["ab", "predictions", "kernels", "memory", "precision", "mixed-precision", "roofline", "oom"]),
    help="What reports of this kind found.",
)
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only these cells, such as precision=fp32.")
@click.option("--unit", type=click.Choice(["ms", "s", "us"]), help="Of times in text. [default: ms]")
@click.option(
    "--digits", type=click.IntRange(0, 9), help="Decimal places of times. [default: as many as the std supports]"
)
@click.option("--caption", default="", metavar="TEXT", help="Of the table, instead of its own.")
@click.option("--figures", type=DIRECTORY, metavar="DIR", help="Also write figures here, as SVG, PDF and PNG.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["markdown", "latex", "typst", "csv", "json", "html"]),
    default="markdown",
    show_default=True,
)
@click.option("-o", "--output", type=FILE, help="Write here instead of standard output.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@session_dir_option
def export(**options: Any) -> None:
    """Tables and figures of SESSION...: ids, unique prefixes of ids, `last` or paths. Several become one table.

    Without other options a table of all results; as CSV and JSON the whole records.
    """
    from cs336_tui.cli.export import export_command

    click.echo(export_command(**options), nl=False)


@cli.command("summary", short_help="Write a folder with text, tables, figures and logs of sessions.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option("-o", "--output", type=DIRECTORY, required=True, help="The folder; must not exist yet.")
@click.option("--force", is_flag=True, help="Replace an earlier summary there.")
@session_dir_option
def summary(**options: Any) -> None:
    """Write the summary of SESSION... as a folder: summary.md and summary.html, tables/, figures/ and the logs."""
    from cs336_tui.cli.export import summary_command

    summary_command(**options)


for command in (*REPORT_COMMANDS, *TRUST_COMMANDS):
    cli.add_command(command)


def _open_app(*, replay: Path | None, **options: Any) -> None:
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError(
            "the app needs a terminal on standard input, output and error; without one: cs336-tui bench"
        )
    gc.disable()  # until something is on the screen: what is imported and built until then is here to stay
    from cs336_tui.cli.launch import open_app

    sys.exit(open_app(replay=replay, **options))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point. What cannot be done is one line on standard error: with exit code 2 for bad usage, else 1."""
    from cs336_tui.cli.streams import in_one_line, settle_streams
    from cs336_tui.config.spec import SpecError

    settle_streams()
    try:
        if arguments is None:
            _check_encodable(sys.argv[1:])
        cli.main(args=arguments, prog_name="cs336-tui", standalone_mode=False)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except SpecError as error:
        _fail(str(error), 2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        _fail(in_one_line(error), 2 if error.errno == errno.ENAMETOOLONG else 1)
    sys.exit(0)


def _check_encodable(words: Sequence[str]) -> None:
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"argument {number}, {ascii(word)[:80]}: not valid UTF-8") from None


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"cs336-tui: {in_brief(message)}", err=True)
    sys.exit(code)
