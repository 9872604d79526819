"""What is entered in the configure pane, as text and ticks, and the sweep that it makes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec

from cs336_tui.environment import Environment
from cs336_tui.sizes import dims_of
from cs336_tui.spec import CUSTOM_SIZE, ModelDims, SpecError
from cs336_tui.sweep import INTERVAL, UNRESOLVED, Auto, Sweep, auto_of, share_of, steps_words

CONTEXTS = ("128", "256", "512", "1024")
"""Context lengths offered as choices; others are typed."""

MAX_CELLS = 10_000
"""The most cells that the app runs at once: each is a row of its table."""
AFTER_OOM = ("skip larger", "try all")
"""What becomes of waiting cells that need at least as much memory as one that ran out of it."""
DIMS = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size")

_WHOLE = "expected a whole number"
_SEVERAL = f"{_WHOLE}, or several as 1,2,4"
_T = TypeVar("_T")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run and summarise, apart from what.

    `timeout_s` ends a cell that takes longer, None never. All cells run `repeats` times, round after round. After a
    cell that ran out of memory, `skip_after_oom` skips waiting ones that need at least as much.
    """

    ddof: int = 1
    timeout_s: float | None = None
    repeats: int = 1
    skip_after_oom: bool = True


class Entries(msgspec.Struct, frozen=True, kw_only=True):
    """Everything as it was entered, valid or not. Fields are named as `SpecError` names them."""

    size: tuple[str, ...]
    d_model: str
    d_ff: str
    num_layers: str
    num_heads: str
    vocab_size: str
    context_length: tuple[str, ...]
    other_contexts: str
    batch_size: str
    pass_: tuple[str, ...]
    precision: tuple[str, ...]
    device: tuple[str, ...]
    warmup_steps: str
    measure_steps: str
    edition: str
    arch: str
    sync: str
    seed: str
    threads: str
    ddof: str
    timeout_s: str
    repeats: str
    after_oom: str

    def with_value(self, field: str, value: str | tuple[str, ...]) -> Entries:
        """The same with one field changed; where one choice only is held, that of a tuple of one."""
        if isinstance(getattr(self, _attribute(field)), str) and isinstance(value, tuple):
            (value,) = value
        return msgspec.structs.replace(self, **{_attribute(field): value})

    def with_options_of(self, other: Entries) -> Entries:
        """The same with the other's entries that are no part of a sweep."""
        kept = {name: getattr(other, name) for name in ("ddof", "timeout_s", "repeats", "after_oom")}
        return msgspec.structs.replace(self, **kept)

    def text(self, field: str) -> str:
        """What was typed in a field."""
        return str(getattr(self, _attribute(field)))

    def chosen(self, field: str) -> tuple[str, ...]:
        """What was ticked in a field."""
        value = getattr(self, _attribute(field))
        return (value,) if isinstance(value, str) else tuple(value)


def _attribute(field: str) -> str:
    return "pass_" if field == "pass" else field


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What the entries mean. `sweep` is None exactly when there are `problems`."""

    sweep: Sweep | None
    options: RunOptions
    problems: tuple[SpecError, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The problems as lines."""
        return tuple(map(str, self.problems))

    @property
    def summary(self) -> str:
        """How much would run: cells, and steps of all cells, warm-up included."""
        if self.sweep is None:
            return ""
        cells = len(self.sweep) * self.options.repeats
        steps = cells * self.sweep.steps + cells // len(self.sweep.warmups) * sum(self.sweep.warmups)
        most = "at most " if self.sweep.warmup_auto or self.sweep.steps_auto is not None else ""
        return f"{_plural(cells, 'cell')} · {most}{_plural(steps, 'step')}"


def entries_of(sweep: Sweep, options: RunOptions | None = None) -> Entries:
    """The entries that `read` turns into this sweep and these options."""
    options = options or RunOptions()
    contexts = tuple(str(context) for context in sweep.contexts)
    dims = sweep.dims or dims_of("tiny", sweep.edition, sweep.vocab_size)
    return Entries(
        size=(CUSTOM_SIZE,) if sweep.dims else sweep.sizes,
        d_model=str(dims.d_model),
        d_ff=str(dims.d_ff),
        num_layers=str(dims.num_layers),
        num_heads=str(dims.num_heads),
        vocab_size=str(dims.vocab_size),
        context_length=tuple(context for context in contexts if context in CONTEXTS),
        other_contexts=",".join(context for context in contexts if context not in CONTEXTS),
        batch_size=",".join(map(str, sweep.batches)),
        pass_=sweep.passes,
        precision=sweep.precisions,
        device=sweep.devices,
        warmup_steps=",".join(sweep.warmup_words),
        measure_steps=steps_words(sweep.steps, sweep.steps_auto),
        edition=sweep.edition,
        arch=sweep.arch,
        sync=sweep.sync,
        seed=str(sweep.seed),
        threads="" if sweep.threads is None else str(sweep.threads),
        ddof=str(options.ddof),
        timeout_s="" if options.timeout_s is None else str(options.timeout_s).removesuffix(".0"),
        repeats=str(options.repeats),
        after_oom=AFTER_OOM[0 if options.skip_after_oom else 1],
    )


def read(entries: Entries, environment: Environment | None = None) -> Form:
    """The sweep and options that the entries mean, or everything that is wrong with them.

    Costs the sum of the choices, never their product. Without an environment every precision passes.
    """
    reader = _Reader()
    custom = CUSTOM_SIZE in entries.size
    warmups = reader.warmups(entries.warmup_steps)
    steps, share = reader.steps(entries.measure_steps)
    dims = reader.dims({field: getattr(entries, field) for field in DIMS}) if custom else None
    sweep = Sweep(
        sizes=_PLAIN.sizes if custom else entries.size,
        dims=dims,
        vocab_size=_PLAIN.vocab_size if custom else reader.number("vocab_size", entries.vocab_size, 1),
        contexts=reader.numbers("context_length", ",".join((*entries.context_length, entries.other_contexts))),
        batches=reader.numbers("batch_size", entries.batch_size),
        passes=entries.pass_,
        precisions=entries.precision,
        devices=entries.device,
        warmups=(warmups.most,) if isinstance(warmups, Auto) else warmups,
        warmup_auto=isinstance(warmups, Auto),
        steps=steps,
        steps_auto=share,
        edition=entries.edition,
        arch=entries.arch,
        sync=entries.sync,
        seed=reader.number("seed", entries.seed, _PLAIN.seed),
        threads=reader.number("threads", entries.threads, 1) if entries.threads.strip() else None,
    )
    options = RunOptions(
        ddof=reader.number("ddof", entries.ddof, 1),
        timeout_s=reader.seconds(entries.timeout_s),
        repeats=reader.number("repeats", entries.repeats, 1),
        skip_after_oom=entries.after_oom == AFTER_OOM[0],
    )
    if options.repeats < 1:
        reader.add(SpecError("repeats", options.repeats, "expected a whole number, at least 1"))
    for part in _parts(sweep):
        reader.add(*part.problems())
    reader.add(*_device_problems(sweep, environment))
    cells = len(sweep) * options.repeats
    if not reader.problems and cells > MAX_CELLS:
        reader.add(SpecError("sweep", f"of {cells} cells", f"expected at most {MAX_CELLS}"))
    problems = tuple(sorted(reader.problems.values(), key=lambda problem: _position(problem.field)))
    return Form(sweep=None if problems else sweep, options=options, problems=problems)


def _position(field: str) -> int:
    """Where in the form a field stands; what concerns several fields comes last."""
    fields = Entries.__struct_fields__
    return fields.index(_attribute(field)) if _attribute(field) in fields else len(fields)


_PLAIN = Sweep(devices=("cpu",))


def _parts(sweep: Sweep) -> Iterator[Sweep]:
    """Sweeps that together have the problems of `sweep`, apart from its devices', each with one part of its choices.

    Only the size and the architecture, and the steps and how they are synchronised, depend on each other, so the
    product need not be walked.
    """
    for fields in (
        ("sizes", "dims", "vocab_size", "edition", "arch"),
        ("contexts",), ("batches",), ("passes",), ("precisions",), ("warmups", "warmup_auto"),
        ("steps", "steps_auto", "sync"), ("seed",), ("threads",),
    ):  # fmt: skip
        yield msgspec.structs.replace(_PLAIN, **{field: getattr(sweep, field) for field in fields})


def _device_problems(sweep: Sweep, environment: Environment | None) -> Iterator[SpecError]:
    """What is wrong with the devices, and with each precision on each of them where they are known."""
    try:
        devices = environment.resolve(sweep.devices) if environment else _any_as_cpu(sweep.devices)
    except SpecError as error:
        yield error
        return
    unresolved = next((name for name in sweep.devices if name in UNRESOLVED), None)
    if unresolved and len(set(devices)) != len(devices):
        here = ", ".join(environment.resolve((unresolved,)) if environment else ("one of them",))
        yield SpecError("device", ",".join(sweep.devices), f"{unresolved} is {here} here, choose one of the two")
    else:
        yield from _PLAIN.with_devices(devices).problems()
    if environment is None:
        return
    for device, precision in itertools.product(devices, sweep.precisions):
        try:
            environment.check(msgspec.structs.replace(_PLAIN, devices=(device,), precisions=(precision,)).cells()[0])
        except SpecError as error:
            yield error


def _any_as_cpu(devices: tuple[str, ...]) -> tuple[str, ...]:
    """With one stand-in for all that is not known before the machine is."""
    named = tuple(device for device in devices if device not in UNRESOLVED)
    return named or ("cpu",)


class _Reader:
    """Reads text into numbers and collects what is wrong, each problem once."""

    def __init__(self) -> None:
        self.problems: dict[str, SpecError] = {}

    def add(self, *problems: SpecError) -> None:
        for problem in problems:
            self.problems.setdefault(str(problem), problem)

    def attempt(self, make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except SpecError as error:
            self.add(error)
            return None

    def number(self, field: str, text: str, instead: int) -> int:
        """A whole number; `instead` when it is none."""
        value = self.attempt(lambda: _whole(field, text, _WHOLE))
        return instead if value is None else value

    def warmups(self, text: str) -> Auto | tuple[int, ...]:
        """Warm-up steps, one or several, or ``auto`` alone with or without the most."""
        try:
            found = auto_of("warmup_steps", text)
        except SpecError as error:
            self.add(error)
            return (1,)
        return found or self.numbers("warmup_steps", text, f"{_SEVERAL}, or auto alone")

    def steps(self, text: str) -> tuple[int, float | None]:
        """A number of measured steps; or the most of them and the share to which the mean's interval is to narrow."""
        return self.attempt(lambda: _measured_steps(text)) or (_PLAIN.steps, None)

    def numbers(self, field: str, text: str, allowed: str = _SEVERAL) -> tuple[int, ...]:
        """Whole numbers between commas; the one that any field may hold when they are none."""
        words = text.split(",")
        if not words[-1].strip():
            words.pop()
        values = self.attempt(lambda: tuple(_whole(field, word, allowed) for word in words))
        return (1,) if values is None else values

    def dims(self, texts: dict[str, str]) -> ModelDims | None:
        """Dimensions of a custom model; None when they are wrong."""
        values = {field: self.attempt(partial(_whole, field, text, _WHOLE)) for field, text in texts.items()}
        known = {field: value for field, value in values.items() if value is not None}
        return self.attempt(lambda: ModelDims(**known)) if known.keys() == values.keys() else None

    def seconds(self, text: str) -> float | None:
        """A positive duration; None when empty."""
        if not text.strip():
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if 0 < value < math.inf:
            return value
        self.add(SpecError("timeout_s", " ".join(text.split()), "expected seconds, more than 0, or nothing"))
        return None


def _measured_steps(text: str) -> tuple[int, float | None]:
    """What ``10``, ``auto``, ``auto:200`` and ``auto 2%`` mean. Raises `SpecError`."""
    count, _, share = " ".join(text.split()).partition(" ")
    automatic = auto_of("measure_steps", count)
    if automatic is None:
        return _whole("measure_steps", text, f"{_WHOLE}, or auto, or as auto 2%"), None
    return automatic.most, share_of(share, "measure_steps") if share else INTERVAL


def _whole(field: str, text: str, allowed: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,15}", text.strip(), re.ASCII):
        raise SpecError(field, " ".join(text.split()) or "(empty)", allowed)
    return int(text)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
