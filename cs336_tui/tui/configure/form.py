"""The entries of the configure pane, as text and ticks, the sweep that they make, and its summary."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cs336_tui.config.axis import Axis, SpecError, names_of
from cs336_tui.config.choices import DO_BENCH_USUAL, USUAL_ALONE, own_code_folders
from cs336_tui.config.counts import steps_words
from cs336_tui.config.presets import RecentModel
from cs336_tui.config.spec import AXES, CUSTOM_SIZE, dims_of
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.values import LANGUAGE_MODEL
from cs336_tui.events.environment import Environment
from cs336_tui.stats.quantities import duration
from cs336_tui.tui.configure.preview import device_problems, known_devices
from cs336_tui.tui.configure.reading import FormReader, joined
from cs336_tui.tui.format import cut_to_lines, plural
from cs336_tui.tui.requests import RunOptions

MAX_CELLS = 10_000
"""The most cells that the app runs at once: each is a row of its table."""
AFTER_OOM = ("skip larger", "try all")
"""Treatment of waiting cells that need at least as much memory as one that ran out of it."""
DIMS = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size")
_SUMMARY_LINES = 5
"""Maximum height of the summary, as in its style."""
_OPTIONS = ("ddof", "timeout_s", "repeats")
"""Entries that are no part of a sweep."""
_DIRECT = ("size", "vocab_size", "warmup_steps", "measure_steps", "model_path")
"""Choices that are read together with others."""


def entry_axes(workload: str | None = None) -> Iterator[Axis]:
    """Choices that have an entry, in the form's order; of one workload those that it has."""
    return (a for a in AXES.values() if a.group and (workload is None or a.is_in(workload)))


def _entry_fields() -> Iterator[str]:
    for axis in AXES.values():
        if axis.group or axis.field in DIMS:
            yield from filter(None, (axis.field, axis.others, *(("head_dim", "heads") if axis.field == "size" else ())))
    yield from ("lanes", "reports", "after_oom", *_OPTIONS)


if TYPE_CHECKING:
    _OfAxes = msgspec.Struct
else:
    _OfAxes = msgspec.defstruct("_OfAxes", [(field, Any) for field in _entry_fields()], frozen=True, kw_only=True)


class Entries(_OfAxes, frozen=True, kw_only=True):
    """Everything as it was entered, valid or not: a text, or a tuple of what was ticked. Fields are named as
    `SpecError` names them; `other_...` hold values beside those that can be ticked."""

    if TYPE_CHECKING:  # the types of entries that code names; the fields themselves are derived

        def __init__(self, **entries: Any) -> None: ...

        size: tuple[str, ...]
        head_dim: str
        heads: str
        vocab_size: str
        workload: str
        causal: str
        model: str
        model_path: str
        loss: str
        device: tuple[str, ...]
        warmup_steps: str
        measure_steps: str
        edition: str
        lanes: str
        reports: tuple[str, ...]
        ddof: str
        timeout_s: str
        repeats: str
        after_oom: str

    def with_value(self, field: str, value: str | tuple[str, ...]) -> Entries:
        """A copy with one field changed; a field of one choice takes a tuple of one."""
        if isinstance(getattr(self, _attribute(field)), str) and isinstance(value, tuple):
            (value,) = value
        return msgspec.structs.replace(self, **{_attribute(field): value})

    @property
    def skips_after_oom(self) -> bool:
        return self.after_oom == AFTER_OOM[0]

    def with_options_of(self, other: Entries) -> Entries:
        return msgspec.structs.replace(self, **{name: getattr(other, name) for name in _OPTIONS})

    def with_usual_of(self, field: str, chosen: Any) -> Entries:
        """A copy with another workload or timer; defaults of the old one become defaults of the new one."""
        known = _usual_by_value()[field]
        before, after = (known.get(value, next(iter(known.values()))) for value in (getattr(self, field), chosen))
        usual = {name: value for name, value in after.items() if getattr(self, name) == before[name]}
        return msgspec.structs.replace(self, **{field: chosen}, **usual)

    def with_model(self, recent: RecentModel) -> Entries:
        """A copy with a recent model and its arguments."""
        return msgspec.structs.replace(
            self,
            model=recent.model,
            model_args=_pairs_words(recent.args),
            model_path=joined(recent.path),
            annotations=_pairs_words(recent.annotations),
        )

    def text(self, field: str) -> str:
        return str(getattr(self, _attribute(field)))

    def chosen(self, field: str) -> tuple[str, ...]:
        value = getattr(self, _attribute(field))
        return (value,) if isinstance(value, str) else tuple(value)

    def all_of(self, axis: Axis) -> tuple[str, ...]:
        typed = names_of(self.text(axis.others)) if axis.others else ()
        return (*self.chosen(axis.field), *typed) if axis.has_chips else names_of(self.text(axis.field))


def _attribute(field: str) -> str:
    return "pass_" if field == "pass" else field


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Result of reading the entries. `sweep` is None exactly if there are `problems`."""

    sweep: Sweep | None
    options: RunOptions
    problems: tuple[SpecError, ...]

    @property
    def summary(self) -> str:
        """Number of cells and of all their steps, warm-up included."""
        if self.sweep is None:
            return ""
        cells = len(self.sweep) * self.options.repeats
        sweep = self.sweep
        timed = [for_s for for_s in (sweep.warmup_for, sweep.steps_for) if for_s is not None]
        steps = 0 if sweep.steps_for is not None else cells * sweep.steps
        steps += 0 if sweep.warmup_for is not None else cells // len(sweep.warmups) * sum(sweep.warmups)
        most = "at most " if sweep.warmup_auto or sweep.steps_auto is not None else ""
        parts = [f"{most}{plural(steps, 'step')}"] if steps or not timed else []
        parts += [f"{duration(cells * sum(timed))} of steps"] if timed else []
        parts += [f"then {', '.join(sweep.reports)}"] if sweep.reports else []
        parts += ["cells that are alike run once"] if sweep.once_words else []
        lanes = "" if sweep.lanes == 1 else " in lanes" if sweep.lanes == "auto" else f" in {sweep.lanes} lanes"
        return " · ".join((plural(cells, "cell") + lanes, *parts))


class Forecast(NamedTuple):
    """The predicted end of the summary; its role is ``text``, ``caution`` or ``bad``."""

    text: str = ""
    role: str = "text"


def summary_lines(said: str, foreseen: str, problems: Sequence[SpecError], width: int) -> list[str]:
    """The first problem, or what is chosen (cells and steps) and what is predicted of it."""
    if problems:
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return cut_to_lines(f"✗ {problems[0]}{others}", width, _SUMMARY_LINES)
    said = f"{said} ·" if foreseen else said
    if len(said) + 1 + len(foreseen) <= width:
        return [f"{said} {foreseen}".rstrip()]
    first = textwrap.wrap(said, width, break_on_hyphens=False)
    return [*first, *cut_to_lines(foreseen, width, max(_SUMMARY_LINES - len(first), 1))]


def entries_of(sweep: Sweep, options: RunOptions | None = None) -> Entries:
    """The entries that `read` turns into this sweep and these options."""
    options = options or RunOptions()
    found: dict[str, str | tuple[str, ...]] = {}
    for axis in entry_axes():
        found |= _shown(axis, getattr(sweep, axis.sweep))
    dims = sweep.dims or dims_of("tiny", sweep.edition, sweep.vocab_size)
    return Entries(
        **found
        | {field: str(getattr(dims, field)) for field in DIMS}
        | {
            "size": (CUSTOM_SIZE,) if sweep.dims_alone else sweep.sizes,
            "head_dim": ",".join(sweep.sizes if sweep.is_collective else map(str, sweep.head_dims)),
            "heads": str(sweep.heads),
            "warmup_steps": ",".join(sweep.warmup_words),
            "measure_steps": steps_words(sweep.steps, sweep.steps_auto, sweep.steps_for),
            "lanes": str(sweep.lanes),
            "reports": sweep.reports,
            "after_oom": AFTER_OOM[0 if sweep.oom_skip else 1],
        },
        ddof=str(options.ddof),
        timeout_s="" if options.timeout_s is None else str(options.timeout_s).removesuffix(".0"),
        repeats=str(options.repeats),
    )


def _shown(axis: Axis, value: Any) -> dict[str, str | tuple[str, ...]]:
    if axis.kind is bool:
        return {axis.field: axis.values[0 if value else 1]}
    if axis.widget == "chips":
        words = tuple(map(str, value))
        offered = tuple(word for word in words if word in axis.values) if axis.others else words
        others = ("," if axis.is_number else ", ").join(word for word in words if word not in offered)
        return {axis.field: offered} | ({axis.others: others} if axis.others else {})
    if axis.group == "variants" and axis.widget != "one" and value == axis.sweep_default:
        return {axis.field: ""}
    match axis.widget:
        case "names":
            return {axis.field: ", ".join(value)}
        case "numbers":
            return {axis.field: ",".join(map(str, value))}
        case "pairs":
            return {axis.field: _pairs_words(value)}
        case "pieces":
            return {axis.field: joined(value)}
    return {axis.field: "" if value is None else str(value)}


def _read(axis: Axis, entries: Entries, reader: FormReader) -> Any:
    if axis.widget == "one":
        text = entries.text(axis.field)
        return text == axis.values[0] if axis.kind is bool else text
    if axis.widget == "chips":
        if axis.is_number:
            text = ",".join((*entries.chosen(axis.field), entries.text(axis.others)))
            return reader.numbers(axis.field, text, axis.kind)
        return entries.all_of(axis)
    text = entries.text(axis.field)
    if not text.strip() and (axis.group == "variants" or axis.sweep_default is None):
        return axis.sweep_default
    match axis.widget:
        case "names":
            return names_of(text) or axis.sweep_default
        case "numbers":
            return reader.numbers(axis.field, text, axis.kind)
        case "number":
            return reader.number(axis.field, text, 1 if axis.default is None else axis.default, axis.kind)
        case "pairs":
            return reader.pairs(axis.field, text)
    return text.strip()


def read(entries: Entries, environment: Environment | None = None) -> Form:
    """The sweep and options that the entries mean, or everything that is wrong with them. Choices of the other workload
    do not count. Costs the sum of the choices, never their product. Without an environment every device can do all."""
    reader = FormReader()
    alone = entries.workload != LANGUAGE_MODEL
    found = {a.sweep: _read(a, entries, reader) for a in entry_axes(entries.workload) if a.field not in _DIRECT}
    found |= _PLAIN.counts(reader.warmups(entries.warmup_steps), *reader.steps(entries.measure_steps))
    found |= {"reports": entries.reports, "oom_skip": entries.skips_after_oom, "lanes": reader.lanes(entries.lanes)}
    unseen = {name: value for name, value in USUAL_ALONE.get(entries.workload, {}).items() if name not in found}
    unseen["edition"] = entries.text("edition")  # the problem's, which a collective has no entry for
    sweep = Sweep(**unseen | found | _dimensions(entries, reader))
    folders = own_code_folders(reader.pieces("model_path", entries.model_path), bool(sweep.own_code))
    sweep = msgspec.structs.replace(sweep, model_path=folders)
    options = RunOptions(
        ddof=reader.number("ddof", entries.ddof, 1),
        timeout_s=reader.seconds(entries.timeout_s),
        repeats=reader.number("repeats", entries.repeats, 1),
    )
    if options.repeats < 1:
        reader.add(SpecError("repeats", options.repeats, "expected a whole number, at least 1"))
    for problem in (*sweep.refusals_on(known_devices(sweep, environment)), *device_problems(sweep, environment)):
        shown = {"size": "head_dim", "d_model": "head_dim", "num_heads": "heads"}.get(problem.field) if alone else None
        reader.add(SpecError(shown, problem.value, problem.allowed) if shown else problem)
    cells = len(sweep) * options.repeats
    if not reader.problems and cells > MAX_CELLS:
        reader.add(SpecError("sweep", f"of {cells} cells", f"expected at most {MAX_CELLS}"))
    order = {field: place for place, field in enumerate(Entries.__struct_fields__)}  # problems of several come last
    problems = tuple(sorted(reader.problems.values(), key=lambda each: order.get(_attribute(each.field), len(order))))
    return Form(sweep=None if problems else sweep, options=options, problems=problems)


def _dimensions(entries: Entries, reader: FormReader) -> dict[str, Any]:
    """The widths of an operation alone, the sizes of messages, or those of a language model."""
    if entries.workload == "collective":
        return {"sizes": tuple(word.strip() for word in entries.head_dim.split(","))}
    if entries.workload != LANGUAGE_MODEL:
        has_heads = entries.workload == "attention"
        return {
            "head_dims": reader.numbers("head_dim", entries.head_dim),
            "heads": reader.number("heads", entries.heads, 1) if has_heads else 1,
        }
    dims = reader.dims({field: entries.text(field) for field in DIMS}) if CUSTOM_SIZE in entries.size else None
    if entries.size == (CUSTOM_SIZE,):
        return {"dims": dims}
    named = {"sizes": entries.size, "vocab_size": reader.number("vocab_size", entries.vocab_size, 1)}
    return named | ({"dims": dims} if dims else {})


def _pairs_words(pairs: tuple[tuple[str, str], ...]) -> str:
    return joined(f"{name}={value}" for name, value in pairs)


_PLAIN = Sweep(devices=("cpu",), passes=("forward",))


def _usual(choices: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The entries of these fields in a sweep with these choices."""
    entries = entries_of(Sweep(**choices))
    return {field: getattr(entries, field) for field in fields}


@cache
def _usual_by_value() -> dict[str, dict[Any, dict[str, Any]]]:
    """Default entries that differ between values of these choices."""
    fields = {field for usual in USUAL_ALONE.values() for field in usual} - {"sizes"}
    alone = ("head_dim", *(axis.field for axis in entry_axes() if axis.sweep in fields))
    of_timer = ("warmup_steps", "measure_steps")
    by_step = _usual({}, of_timer)
    by_do_bench = Sweep().counts(DO_BENCH_USUAL["warmups"], DO_BENCH_USUAL["steps"], None)
    return {
        "workload": {
            LANGUAGE_MODEL: _usual({}, alone),
            **{workload: _usual({"workload": workload, **usual}, alone) for workload, usual in USUAL_ALONE.items()},
        },
        "timer": {("step",): by_step, ("step", "do_bench"): by_step, ("do_bench",): _usual(by_do_bench, of_timer)},
    }
