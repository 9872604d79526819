"""The commands. Starts quickly: what only one command needs is imported in that command."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from cs336_tui import __version__
from cs336_tui.spec import ARCHES, EDITIONS, PASSES, PRECISIONS, SYNCS
from cs336_tui.sweep import Sweep

F = TypeVar("F", bound=Callable[..., Any])


class CommaList(click.ParamType[tuple[str | int, ...]]):
    """``a,b,c`` as a tuple of words, or of whole numbers."""

    def __init__(self, kind: type[str] | type[int]) -> None:
        self._kind = kind
        self.name = "LIST" if kind is str else "N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str | int, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(words):
            self.fail(f"{value!r}: expected values separated by single commas", param, ctx)
        if self._kind is str:
            return tuple(words)
        try:
            return tuple(int(word) for word in words)
        except ValueError:
            self.fail(f"{value!r}: expected whole numbers separated by commas", param, ctx)


WORDS, NUMBERS = CommaList(str), CommaList(int)
FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)


def _text(about: str, default: object) -> str:
    """Help of a choice with the value it has when not given."""
    words = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{about.rstrip('.')}. [default: {words}]"


_DEFAULT = Sweep()
_CHOICES = (
    click.option("--preset", "preset_name", metavar="NAME", help="Start from this preset; other options change it."),
    click.option(
        "--size", "sizes", type=WORDS, help=_text("Model sizes of the edition, such as small,medium", _DEFAULT.sizes)
    ),
    click.option("--d-model", type=int, help="Raw dimensions replace --size."),
    click.option("--d-ff", type=int, help="With --d-model."),
    click.option("--num-layers", type=int, help="With --d-model."),
    click.option("--num-heads", type=int, help="With --d-model."),
    click.option("--vocab-size", type=int, help=_text("Vocabulary", _DEFAULT.vocab_size)),
    click.option("--context", "contexts", type=NUMBERS, help=_text("Context lengths", _DEFAULT.contexts)),
    click.option("--batch", "batches", type=NUMBERS, help=_text("Batch sizes", _DEFAULT.batches)),
    click.option("--pass", "passes", type=WORDS, help=_text(", ".join(PASSES), _DEFAULT.passes)),
    click.option("--precision", "precisions", type=WORDS, help=_text(", ".join(PRECISIONS), _DEFAULT.precisions)),
    click.option("--device", "devices", type=WORDS, help=_text("auto, cpu, mps, cuda, cuda:N", _DEFAULT.devices)),
    click.option(
        "--warmup",
        "warmups",
        type=NUMBERS,
        help=_text("Warm-up steps; several values make several cells", _DEFAULT.warmups),
    ),
    click.option("--steps", type=int, help=_text("Measured steps", _DEFAULT.steps)),
    click.option(
        "--edition", help=_text(f"Handout edition, which names the sizes: {', '.join(EDITIONS)}", _DEFAULT.edition)
    ),
    click.option("--arch", help=_text(", ".join(ARCHES), _DEFAULT.arch)),
    click.option("--sync", help=_text(", ".join(SYNCS), _DEFAULT.sync)),
    click.option("--seed", type=int, help=_text("Of parameters and tokens", _DEFAULT.seed)),
    click.option("--threads", type=int, help=_text("torch's intra-op threads", "torch's own")),
)


def choice_options(command: F) -> F:
    """The options that choose what to run, the same for the app and headless."""
    for option in reversed(_CHOICES):
        command = option(command)
    return command


session_dir_option = click.option(
    "--session-dir", type=DIRECTORY, help="Where session logs are kept. [default: this platform's user data folder]"
)
device_interval_option = click.option(
    "--device-interval",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Time between samples of the GPU and the host during a run; 0 switches them off.",
)
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End a cell that takes longer than this, and go on with the next.",
)


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
@click.option("--format", "format_", type=click.Choice(["markdown", "json", "csv"]), default="markdown")
@click.option("-o", "--output", type=FILE, help="Write the data here instead of standard output.")
@click.option("--summary", metavar="FILE|auto", help="Also keep a session summary here; auto names it.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--in-process", is_flag=True, help="Run the cells in this process, for external profilers.")
@timeout_option
@session_dir_option
@device_interval_option
def bench(**options: Any) -> NoReturn:
    """Run every combination of the given choices, one cell after another.

    Comma lists make a sweep. Progress goes to standard error. Exits with 0 when all cells have a result
    (out-of-memory is one), 1 when a cell failed, 2 on bad usage, 130 when interrupted.
    """
    from cs336_tui.headless.bench import bench_command

    sys.exit(bench_command(**options))


@cli.command(short_help="Say what this machine offers and what is missing.")
def doctor() -> None:
    """Say what this machine offers for benchmarks and what is missing."""
    from cs336_tui.headless.doctor import report

    click.echo(report())


def _open_app(*, replay: Path | None, **options: Any) -> None:
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise click.UsageError(
            "the app needs a terminal on standard input, output and error; without one: cs336-tui bench"
        )
    gc.disable()  # until something is on the screen: what is imported and built until then is here to stay
    from cs336_tui.tui.launch import open_app

    sys.exit(open_app(replay=replay, **options))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point. Bad usage is one line on standard error and exit code 2."""
    from cs336_tui.spec import SpecError

    try:
        cli.main(args=arguments, prog_name="cs336-tui", standalone_mode=False)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except SpecError as error:
        _fail(str(error), 2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"cs336-tui: {message}", err=True)
    sys.exit(code)
