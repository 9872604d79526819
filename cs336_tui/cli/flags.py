"""Options and parameter types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from cs336_tui.cli.help import Choice, heading, option, option_under, under
from cs336_tui.cli.help import options as options
from cs336_tui.cli.suggestions import OF_CHOICES, gpus, offer, presets, sessions
from cs336_tui.config.axis import NUMBERS, Axis, SpecError
from cs336_tui.config.counts import INTERVAL, USUAL_MOST, Counted, auto_of, share_of, share_words
from cs336_tui.config.order import Order
from cs336_tui.config.spec import AXES
from cs336_tui.config.sweep import ASKED_REPORTS, NO_OOM_SKIP, LaneCount
from cs336_tui.config.variants import module_named

F = TypeVar("F", bound=Callable[..., Any])


class Parsed(click.ParamType[Any]):
    """The value that `parse` makes of a text; `SpecError` and other ValueErrors are bad usage."""

    def __init__(self, name: str, parse: Callable[[str], Any], *, several: bool = False) -> None:
        self.name, self.parse, self.several = name, parse, several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except SpecError as error:
            self.fail(f"{error.value!r}: {error.allowed}", param, ctx)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def comma_list(kind: type) -> Parsed:
    """``a,b,c`` as a tuple of words, or of numbers."""

    def parse(text: str) -> tuple[Any, ...]:
        words = [word.strip() for word in text.split(",")]
        if not all(words):
            raise ValueError("expected values separated by single commas")
        try:
            return tuple(map(kind, words))
        except ValueError:
            raise ValueError(f"expected {NUMBERS[kind][2:]}s separated by commas") from None

    return Parsed("LIST" if kind is str else "N,...", parse, several=True)


def _count(field: Counted, *, several: bool = False) -> Parsed:
    """A number of steps, or several with commas where `several`, or ``auto``, ``auto:MAX`` or a time alone."""
    fixed = comma_list(int).parse if several else int

    def parse(text: str) -> Any:
        words = text.split(",")
        found = [auto_of(field, word) for word in words]
        if (auto := next(filter(None, found), None)) and len(words) > 1:
            raise ValueError(auto.alone)
        try:
            return auto or fixed(text)
        except ValueError:
            more = "; several numbers are separated by commas" if several else ""
            raise ValueError(f"expected a number, auto, auto:MAX or a time such as 10s{more}") from None

    return Parsed("N,...|auto[:MAX]|TIME" if several else "N|auto[:MAX]|TIME", parse)


def pair(text: str) -> tuple[str, str]:
    """``name=value`` as the two."""
    name, equals, rest = text.partition("=")
    if not (name.strip() and equals):
        raise ValueError("expected NAME=VALUE")
    return name.strip(), rest.strip()


WORDS = comma_list(str)
COUNT, POSITIVE = click.IntRange(1), click.FloatRange(min=0, min_open=True)
FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)


def _text(axis: Axis) -> str:
    """The help of a choice with the value it has when not given."""
    usual = axis.sweep_default
    words = axis.hint if usual is None else usual
    if isinstance(usual, tuple):
        words = ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in usual)
    if axis.kind is bool:
        words = axis.option if usual else f"no-{axis.option}"
    values = ", ".join(axis.values) + (f", or package.module:{axis.own}" if axis.own else "")
    most = USUAL_MOST.get(axis.field)  # type: ignore[call-overload]
    about = axis.help.format(values=values, default=words, most=most)
    return about if about.endswith((".", "]")) else f"{about}. [default: {words}]"


def _option(axis: Axis) -> Callable[[F], F]:
    name = axis.sweep or axis.field
    if axis.kind is bool:
        both = f"--{axis.option}/--no-{axis.option}"
        return option_under(axis.heading, both, _text(axis), name=name, default=None)
    of_value: Any = comma_list(axis.kind) if axis.several else axis.kind
    if axis.own and axis.several:
        of_value = Parsed("LIST", lambda text: tuple(map(module_named, WORDS.parse(text))), several=True)
    if axis.field in USUAL_MOST:
        of_value = _count(axis.field, several=axis.several)
    elif axis.kind is tuple:
        of_value = Parsed("NAME=VALUE", pair) if axis.widget == "pairs" else click.Path()
    return option_under(
        axis.heading,
        f"--{axis.option} {axis.metavar or ''}",
        _text(axis),
        name=name,
        type=of_value,
        multiple=axis.kind is tuple,
        complete=OF_CHOICES.get(axis.field, axis.values),
    )


def choices_of(*fields: str) -> Callable[[F], F]:
    """The options of some choices alone, as `choice_options` has them."""
    return options(*(_option(AXES[field]) for field in fields if AXES[field].option))


_LAST = ("workload", "causal")
_INTERVAL = option_under(
    "How long",
    "--interval",
    "With --steps auto: target width of the 95 % interval of the mean, as a share of it; whole width of the "
    f"interval, so 2% is ± 1 %. [default: {share_words(INTERVAL)}]",
    type=Parsed("SHARE", share_of),
)
_HEAD_DIM = option_under(
    "One operation alone",
    "--head-dim --width",
    "Widths, with --workload attention (queries, keys, values) or norm (rows).",
    name="head_dims",
    type=comma_list(int),
)
_PRESET = option_under(
    "What to run",
    "--preset NAME",
    "Start from this preset; other options change it.",
    name="preset_name",
    complete=presets,
)
_UNTIL_STEPS = list(AXES)[: list(AXES).index("measure_steps") + 1]


def _choices(*without: str) -> Callable[[F], F]:
    """The options of all choices but these."""
    first = [field for field in _UNTIL_STEPS if field not in without]
    others = [field for field in AXES if field not in (*_UNTIL_STEPS, *_LAST, *without)]
    last = (choices_of("workload"), _HEAD_DIM, choices_of("causal"))
    return options(_PRESET, choices_of(*first), _INTERVAL, choices_of(*others), *last)


def reword(command: click.Command, steps_metavar: str | None = None, **helps: str | None) -> None:
    """Give options of a command another help, and hide those without any; name the value of steps and warm-up."""
    for each in command.params:
        if steps_metavar and each.name in ("warmups", "steps"):
            each.metavar = steps_metavar
        if isinstance(each, click.Option) and each.name in helps:
            text = helps[each.name]
            each.help, each.hidden = text or each.help, text is None


def refuse(*cases: tuple[object, str]) -> None:
    """Raise `click.UsageError` with the words of the first case that is so."""
    if why := next((words for is_so, words in cases if is_so), None):
        raise click.UsageError(why)


def _default_session_dir() -> Path:
    from cs336_tui.session.log import default_session_dir

    return default_session_dir()


comm_options = options(
    _PRESET,
    heading("What to run"),
    option(
        "--op",
        f"Operations: {', '.join(AXES['collective'].values)}. [default: all-reduce]",
        name="collectives",
        type=WORDS,
        complete=AXES["collective"].values,
    ),
    option("--size", "Sizes of the whole array, such as 10MB or 10MiB. [default: 10MB]", name="sizes", type=WORDS),
    option("--ranks", "Number of ranks: processes that communicate. [default: 2]", name="ranks", type=comma_list(int)),
    choices_of("backend"),
    option(
        "--precision --dtype",
        "Data type: fp32, bf16. [default: fp32]",
        name="precisions",
        type=WORDS,
        complete=("fp32", "bf16"),
    ),
    choices_of("device", "warmup_steps", "measure_steps"),
    _INTERVAL,
    choices_of("threads"),
)
"""The options that choose collectives."""
choice_options = _choices()
"""The options that choose what to run, the same for the app and headless."""
start_options = _choices("within")
"""Those of a search's starting point, whose ``--within`` is a limit of memory."""
session_dir_option = option_under(
    "Session",
    "--session-dir",
    "Folder of the session logs. [default: this platform's user data folder]",
    type=DIRECTORY,
    default=_default_session_dir,
)
ddof_option = option_under("Output", "--ddof", "Every std divides by n - ddof.", type=click.IntRange(0, 1), default=1)
device_interval_option = option_under(
    "Session",
    "--device-interval SECONDS",
    "Time between samples of GPU and host during a run; 0: no samples.",
    name="device_interval_s",
    type=click.FloatRange(min=0),
    default=0.5,
)
reports_option = option_under(
    "How it runs",
    "--reports LIST",
    f"Reports to make after all cells, of those that ended well: {', '.join(ASKED_REPORTS)}; none.",
    type=comma_list(str),
    complete=(*ASKED_REPORTS, "none"),
)
order_options = under(
    "How it runs",
    option(
        "--repeats R",
        "Run all cells R times, round after round, so that drift of the machine affects all alike.",
        type=COUNT,
        default=1,
    ),
    option(
        "--order",
        "Order of the cells. [default: smallest-first; in lanes longest-first, by the work of all steps]",
        type=Choice(get_args(Order)),
    ),
)


def _lane_count(text: str) -> LaneCount:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if text != "auto" and count < 1:
        raise ValueError("expected a whole number, at least 1, or auto")
    return "auto" if text == "auto" else count


LANES = Parsed("N|auto", _lane_count)
lanes_option = option_under(
    "How it runs",
    "--lanes",
    "Run this many cells side by side, each on a device of its own (on a CPU: on cores of its own); auto: one "
    "for each device. They share the devices of --device, and each cell runs once. [default: 1]",
    type=LANES,
    complete=("auto",),
)
oom_option = option_under(
    "How it runs",
    f"--oom-skip/{NO_OOM_SKIP}",
    "After an out-of-memory, skip waiting cells of its kind that need at least as much. "
    "[default: skip, unless the preset or the session says otherwise]",
    default=None,
)


def _listing_gpus(context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    """The name of a GPU; of ``list`` all names are printed instead."""
    if name == "list" and not context.resilient_parsing:
        from cs336_tui.events.gpus import known_gpus

        click.echo("\n".join(gpu.name for gpu in known_gpus()))
        context.exit()
    return name


gpu_option = option_under(
    "Which device",
    "--gpu NAME",
    'Target GPU, here or elsewhere, such as "H100 80GB"; list: print all names. [default: this machine]',
    complete=gpus,
    callback=_listing_gpus,
)
_explain_option = option_under(
    "How it runs",
    "--oom-explain/--no-oom-explain",
    "Run a cell that ran out of memory once more, apart, to see what filled the memory.",
    name="explain_oom",
    default=True,
)
fit_check_option = option_under(
    "How it runs",
    "--fit-check/--no-fit-check",
    "On a CPU, skip cells whose predicted memory does not fit.",
    name="check_fit",
    default=True,
)


def a_session(name: str = "session", **attributes: Any) -> Callable[[F], F]:
    """An argument that names a session, or several."""
    return click.argument(name, shell_complete=offer(sessions), **attributes)


session_argument = a_session(default="last")
sessions_argument = a_session("sessions", nargs=-1, required=True, metavar="SESSION...")
trust_option = option_under(
    "Session",
    "--trust",
    "Run what the session's log names and the command line does not: code outside of the current folder, "
    "machines and options of its jobs.",
    name="trusted",
    is_flag=True,
)
take_over_option = option_under(
    "Session",
    "--take-over",
    "Write the session although another process is named as its writer; only if that one is gone.",
    is_flag=True,
)
timeout_option = option_under(
    "How long",
    "--timeout SECONDS",
    "End a cell after this time, and go on with the next.",
    name="timeout_s",
    type=POSITIVE,
)
bench_options = options(oom_option, _explain_option, fit_check_option, timeout_option, device_interval_option)
"""Options of a run, by their names arguments of `Bench`."""
