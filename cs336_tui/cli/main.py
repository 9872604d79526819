"""The group of all commands, and the entry point. A command's module is imported when the command is used."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from cs336_tui import __version__
from cs336_tui.cli.flags import (
    FILE,
    choice_options,
    ddof_option,
    device_interval_option,
    lanes_option,
    reports_option,
    session_dir_option,
    timeout_option,
)
from cs336_tui.cli.help import Command, Group, heading, option, option_under, write_sections
from cs336_tui.cli.suggestions import themes
from cs336_tui.config.axis import UserError
from cs336_tui.events.reports import ASKED_FOR, REPORTS


class Listed(NamedTuple):
    """A command: its module in this folder, its heading in help, and what help says of it in one line; nothing of one
    that only jobs call."""

    module: str
    heading: str = ""
    about: str = ""


if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


COMMANDS: dict[str, Listed] = {
    "bench": Listed("bench", "Run", "Run benchmarks without the app; data on standard output."),
    "ab": Listed("ab", "Run", "Run two cells in turns, step by step, and say which is faster."),
    "gate": Listed("ab", "Run", "Run two commits of your own code in turns, and exit by which is slower."),
    "tune": Listed("tune", "Run", "Search the choices that make a step fastest, and say by how much."),
    "comm": Listed("bench", "Run", "Time collectives of several ranks: all-reduce and others, over sizes."),
    "resume": Listed("bench", "Run", "Run the cells of a session that have no result yet."),
    "presets": Listed("config", "Run", "List the presets; `presets show NAME` shows one."),
    "example": Listed("bench", "Run", "Print code of your own to start from: attention, model, optimizer and others."),
    "problems": Listed("problems", "Run", "The problems of the handouts: what each needs, and what a session has."),
    "sessions": Listed("sessions", "Results", "List the sessions on this machine."),
    "show": Listed("sessions", "Results", "Show one session and its results."),
    "compare": Listed("compare", "Results", "Compare two sessions or two cells."),
    "export": Listed("export", "Results", "Tables and figures of sessions, for a write-up."),
    "summary": Listed("export", "Results", "Write a folder with text, tables, figures and logs of sessions."),
    "bundle": Listed("bundle", "Results", "Pack a session as evidence that travels: log, tables, hashes."),
    "verify": Listed("bundle", "Results", "Check a bundle: hashes, every table from the raw steps, a new run."),
    "reference": Listed("compare", "Results", "Published times, peaks and kernels beside a session's own."),
    "open": Listed("sessions", "Results", "Open a session, or traces, memory snapshots and nsys reports of others."),
    "estimate": Listed("estimate", "Look ahead", "Predict memory, FLOPs and time; runs nothing."),
    "fit": Listed("estimate", "Look ahead", "The largest batch or context length that fits."),
    "plan": Listed("plan", "Look ahead", "From how many ranks on communication is the limit; runs nothing."),
    **{kind: Listed("reports", "Profile", REPORTS[kind].command) for kind in ASKED_FOR},
    "watch": Listed("jobs", "Cluster", "Follow a session that runs elsewhere, until it is over."),
    "cancel": Listed("jobs", "Cluster", "Cancel the jobs of a session, or stop the process that runs it."),
    "config": Listed("config", "Maintain", "Your settings: theme, preset, columns, keys and others."),
    "doctor": Listed("machine", "Maintain", "Say what this machine offers and what is missing."),
    "peak": Listed("machine", "Maintain", "Measure the peak of this machine's devices: matrix products and copies."),
    "selftest": Listed("selftest", "Maintain", "Compare this tool's step times with those of a bare script."),
    "rename": Listed("sessions", "Maintain", "Give a session a name."),
    "annotate": Listed("sessions", "Maintain", "Give a session a note."),
    "delete": Listed("sessions", "Maintain", "Delete sessions for good; asks first."),
    "completion": Listed("completion", "Maintain", "Print the script by which bash, zsh or fish completes values."),
    "run-job": Listed("jobs"),
    "run-ranks": Listed("jobs"),
}
"""In the order of help."""
_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("run", "benchmark", "time", "measure", "train"), "bench"),
    **dict.fromkeys(("profile", "trace", "nsys"), "kernels, which profiles, or open, which reads a profile"),
    **dict.fromkeys(("history", "list", "ls", "log", "runs"), "sessions"),
    **dict.fromkeys(("diff", "versus"), "compare"),
    **dict.fromkeys(("plot", "figures", "tables", "report"), "export"),
    **dict.fromkeys(("predict", "simulate"), "estimate"),
    **dict.fromkeys(("search", "race", "optimize"), "tune"),
    **dict.fromkeys(("stat", "stats", "results"), "show"),
    **dict.fromkeys(("rm", "remove"), "delete"),
}


class _Commands(Group):
    """A group whose commands are imported one by one, so that it starts quickly."""

    file_command = "open"
    elsewhere = _ELSEWHERE

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(name for name, listed in COMMANDS.items() if listed.about)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"cs336_tui.cli.{COMMANDS[name].module}")
        function = name.replace("-", "_")
        command: click.Command = module.REPORT_COMMANDS[name] if name in ASKED_FOR else getattr(module, function)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete options as any command does, and commands without their modules."""
        from click.shell_completion import CompletionItem

        fitting = [(name, each.about) for name, each in COMMANDS.items() if each.about and name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=about) for name, about in fitting), *options]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, which returns its exit code or the text to print."""
        try:
            result = super().invoke(ctx)
        except UserError as error:
            from cs336_tui.export.writing.files import NoRoom

            kind = click.UsageError if error.exit_code == 2 else click.ClickException
            raise kind(f"not written: {error}" if isinstance(error, NoRoom) else str(error)) from None
        if isinstance(result, int):
            sys.exit(result)
        if result:
            click.echo(result, nl=not result.endswith("\n"))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands first: they are what help of the whole is asked for."""
        self.format_commands(ctx, formatter)
        Command.format_options(self, ctx, formatter)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found: dict[str, list[tuple[str, str]]] = {}
        for name, listed in COMMANDS.items():
            if listed.about:
                found.setdefault(listed.heading, []).append((name, listed.about))
        write_sections(formatter, found.items())


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cs336-tui", message="%(prog)s %(version)s")
@heading("The app")
@option("--replay", "Replay this session log in the app; nothing is run.", type=FILE)
@option("--speed", "Replay speed; 0: all at once.", type=click.FloatRange(min=0), default=1.0)
@option("--theme NAME", "Colour theme of the app.", complete=themes)
@option(
    "--refresh HZ",
    "Screen updates a second during a run, 0.2 to 30. [default: 2]",
    type=click.FloatRange(min=0.2, max=30),
)
@option("--low-bandwidth/--no-low-bandwidth", "Write less to the terminal, for slow connections.", default=None)
@choice_options
@reports_option
@lanes_option
@option_under("Output", "--summary", "Write a summary here after each cell; over an old file at the end.", type=FILE)
@ddof_option
@timeout_option
@session_dir_option
@device_interval_option
@click.pass_context
def cli(context: click.Context, /, **options: Any) -> int | None:
    """Benchmark Transformer training steps, live in your terminal.

    Without a command, opens the app, its panes filled with the choices given here. `cs336-tui bench` takes the same
    choices and runs them without a screen. A session's log or folder, or a recording, in place of a command is opened.
    """
    if context.invoked_subcommand is not None:
        return None
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError(
            "the app needs a terminal on standard input, output and error; without one: cs336-tui bench"
        )
    gc.disable()  # until something is on the screen: what is imported and built until then is here to stay
    from cs336_tui.cli.launch import open_app

    return open_app(**options)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point. What cannot be done is one line on standard error: with exit code 2 for bad usage, else 1."""
    from cs336_tui.cli.streams import in_one_line, settle_streams

    settle_streams()
    try:
        for number, word in enumerate(sys.argv[1:] if arguments is None else (), 1):
            try:
                word.encode()
            except UnicodeEncodeError:
                raise click.UsageError(f"argument {number}, {ascii(word)[:80]}: not valid UTF-8") from None
        if "_CS336_TUI_COMPLETE" in os.environ:
            from cs336_tui.cli.completion import register

            register()
        cli.main(args=arguments, prog_name="cs336-tui", standalone_mode=False)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        _fail(in_one_line(error), 2 if error.errno == errno.ENAMETOOLONG else 1)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    from cs336_tui.export.writing.texts import in_brief

    click.echo(f"cs336-tui: {in_brief(message)}", err=True)
    sys.exit(code)
