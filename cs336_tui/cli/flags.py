"""Options and parameter types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cs336_tui.config.spec import ARCHES, EDITIONS, PASSES, PRECISIONS, SYNCS, SpecError
from cs336_tui.config.sweep import INTERVAL, USUAL_MOST, Auto, Counted, Sweep, auto_of, share_of, share_words
from cs336_tui.config.variants import ATTENTIONS, COMPILES, CROSS_ENTROPY, CUDA_GRAPHS, OPTIMIZERS, REFERENCE, WORKLOADS

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


class Count(click.ParamType[int | tuple[int, ...] | Auto]):
    """A number of steps, or several with commas where `several`, or ``auto`` or ``auto:MAX`` alone."""

    def __init__(self, field: Counted, *, several: bool = False) -> None:
        self._field = field
        self._fixed: click.ParamType[Any] = CommaList(int) if several else click.INT
        self.name = "N,...|auto[:MAX]" if several else "N|auto[:MAX]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        words = value.split(",")
        try:
            found = [auto_of(self._field, word) for word in words]
        except SpecError as error:
            self.fail(f"{error.value!r}: {error.allowed}", param, ctx)
        if not any(found):
            try:
                return self._fixed.convert(value, param, ctx)
            except click.BadParameter:
                more = "; several numbers are separated by commas" if isinstance(self._fixed, CommaList) else ""
                self.fail(f"{value!r}: expected a number, auto or auto:MAX{more}", param, ctx)
        if len(words) > 1:
            self.fail(f"{value!r}: auto stands alone", param, ctx)
        return found[0]


class Share(click.ParamType[float]):
    """A share of the mean, as ``1%`` or ``0.01``."""

    name = "SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return share_of(str(value))
        except SpecError as error:
            self.fail(f"{error.value!r}: {error.allowed}", param, ctx)


class Pair(click.ParamType[tuple[str, str]]):
    """``name=value`` as the two."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, rest = str(value).partition("=")
        if not (name.strip() and equals):
            self.fail(f"{value!r}: expected NAME=VALUE", param, ctx)
        return name.strip(), rest.strip()


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
    click.option(
        "--device", "devices", type=WORDS, help=_text("auto, every, cpu, mps, cuda, cuda:N", _DEFAULT.devices)
    ),
    click.option(
        "--warmup",
        "warmups",
        type=Count("warmup_steps", several=True),
        help=_text(
            "Warm-up steps; several values make several cells. auto: until steps are steady, at most "
            f"{USUAL_MOST['warmup_steps']} unless said",
            _DEFAULT.warmups,
        ),
    ),
    click.option(
        "--steps",
        type=Count("measure_steps"),
        help=_text(
            "Measured steps. auto: until the mean is known to --interval or the noise has settled, at most "
            f"{USUAL_MOST['measure_steps']} unless said",
            _DEFAULT.steps,
        ),
    ),
    click.option(
        "--interval",
        type=Share(),
        help=_text(
            "With --steps auto: how wide the 95 % interval of the mean may be, as a share of it; whole width of the "
            "interval, so 2% is ± 1 %",
            share_words(INTERVAL),
        ),
    ),
    click.option(
        "--edition", help=_text(f"Handout edition, which names the sizes: {', '.join(EDITIONS)}", _DEFAULT.edition)
    ),
    click.option("--arch", help=_text(", ".join(ARCHES), _DEFAULT.arch)),
    click.option("--sync", help=_text(", ".join(SYNCS), _DEFAULT.sync)),
    click.option("--seed", type=int, help=_text("Of parameters and tokens", _DEFAULT.seed)),
    click.option("--threads", type=int, help=_text("torch's intra-op threads", "torch's own")),
    click.option(
        "--model",
        "models",
        type=WORDS,
        metavar="package.module:Class,...",
        help=_text(
            f"A model of your own: a class or a function that makes one; {REFERENCE} is the one that comes along",
            REFERENCE,
        ),
    ),
    click.option(
        "--model-arg",
        "model_args",
        type=Pair(),
        multiple=True,
        help="An argument that your model wants beside the dimensions, such as rope_theta=10000, "
        "or Class.rope_theta=10000 for one of several; may be repeated.",
    ),
    click.option(
        "--model-path",
        "model_path",
        type=click.Path(),
        multiple=True,
        metavar="FOLDER",
        help="Where what you name is looked for; may be repeated. [default: the current folder]",
    ),
    click.option(
        "--annotate",
        "annotations",
        type=Pair(),
        multiple=True,
        metavar="RANGE=package.module:function",
        help="Of your own model: count this function's time and memory to this part, such as softmax; may be repeated.",
    ),
    click.option(
        "--attention",
        "attentions",
        type=WORDS,
        help=_text(
            f"How attention is computed: {', '.join(ATTENTIONS)}, or package.module:function", _DEFAULT.attentions
        ),
    ),
    click.option(
        "--compile", "compiles", type=WORDS, help=_text(f"torch.compile: {', '.join(COMPILES)}", _DEFAULT.compiles)
    ),
    click.option(
        "--checkpoint",
        "checkpoints",
        type=NUMBERS,
        help=_text("Recompute activations in groups of so many blocks; 0: keep them", _DEFAULT.checkpoints),
    ),
    click.option(
        "--optimizer",
        "optimizers",
        type=WORDS,
        help=_text(f"Of train-step: {', '.join(OPTIMIZERS)}, or package.module:Class", _DEFAULT.optimizers),
    ),
    click.option("--loss", help=_text("The loss, or package.module:function", CROSS_ENTROPY)),
    click.option(
        "--cuda-graph",
        "cuda_graphs",
        type=WORDS,
        help=_text(f"{', '.join(CUDA_GRAPHS)}; step: replay the whole step as one CUDA graph", _DEFAULT.cuda_graphs),
    ),
    click.option("--workload", help=_text(f"{', '.join(WORKLOADS)}; attention: that alone", _DEFAULT.workload)),
    click.option(
        "--head-dim", "head_dims", type=NUMBERS, help="With --workload attention: widths of queries, keys and values."
    ),
    click.option("--causal/--no-causal", default=None, help="With --workload attention. [default: causal]"),
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
order_options = (
    click.option(
        "--repeats",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="R",
        help="Run all cells R times, round after round, so that a drifting machine drifts for all alike.",
    ),
    click.option(
        "--order", type=click.Choice(["smallest-first", "as-given"]), default="smallest-first", show_default=True
    ),
)
oom_option = click.option(
    "--oom-skip/--no-oom-skip",
    default=True,
    show_default=True,
    help="After a cell that ran out of memory, skip waiting ones of its kind that need at least as much.",
)
_FORMATS = ("markdown", "latex", "typst", "csv", "json", "html")


def _file_options(*formats: str) -> tuple[Callable[[F], F], ...]:
    """In which format, the first unless said, and where to."""
    return (
        click.option("--format", "format_", type=click.Choice(formats), default=formats[0], show_default=True),
        click.option("-o", "--output", type=FILE, help="Write here instead of standard output."),
        click.option("--force", is_flag=True, help="Overwrite existing files."),
    )


report_options: tuple[Callable[[Any], Any], ...] = _file_options(*_FORMATS)
answer_options: tuple[Callable[[Any], Any], ...] = _file_options("table", *_FORMATS)
gpu_option = click.option(
    "--gpu", metavar="NAME", help='For this GPU, which need not be here, such as "H100 80GB"; an unknown one lists all.'
)
explain_option = click.option(
    "--oom-explain/--no-oom-explain",
    default=True,
    show_default=True,
    help="Try a cell that ran out of memory again, apart, to tell what filled the memory.",
)
fit_check_option = click.option(
    "--fit-check/--no-fit-check",
    default=True,
    show_default=True,
    help="On a CPU, do not try what by prediction has no room in its memory.",
)
session_argument = click.argument("session", default="last")
data_options = (
    click.option("--format", "format_", type=click.Choice(["markdown", "json", "csv"]), default="markdown"),
    click.option("-o", "--output", type=FILE, help="Write the data here instead of standard output."),
    click.option("--summary", metavar="FILE|auto", help="Also keep a session summary here; auto names it."),
    click.option("--force", is_flag=True, help="Overwrite existing files."),
)


def options(*several: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order in which help lists them."""

    def decorate(command: F) -> F:
        for option in reversed(several):
            command = option(command)
        return command

    return decorate


timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End a cell that takes longer than this, and go on with the next.",
)
