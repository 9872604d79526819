"""The choices that a search tries: those that can be searched, and the values that ``--over`` names of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cs336_tui.config.axis import NUMBERS, Axis, SpecError
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.tuning import SAME_TOKENS, Goal, Over, Value

USUAL_OVER = tuple(axis.option for axis in AXES.values() if axis.searched)
"""The choices that are searched if none is named: those that do not change results."""
_APART = ("none",)
"""Values of the starting point that are other work beside the others: ranks that train a model each."""
_MOST_BATCH, _MOST_TIMES = 64, 8
"""The largest batch that is tried if none is named: this, or so many times the starting point's."""
_NOT_SEARCHED = {"device", "warmup_steps", "measure_steps", "seed", "sync", "timer", "flush_l2", "within", "workload"}
_NOT_SEARCHED |= {"size", "context_length", "pass_", "causal", "collective", "model_args", "model_path", "annotations"}
_NOT_SEARCHED |= {"edition", "arch", "vocab_size", "batch_is"}
"""Choices of what is run and how it is timed."""


def searched_axes() -> tuple[Axis, ...]:
    """The choices that can be searched; their values are texts or numbers."""
    return tuple(axis for field, axis in AXES.items() if axis.option and axis.group and field not in _NOT_SEARCHED)


def fields_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The fields of the choices that ``--over`` names. Raises `SpecError` for one that cannot be searched."""
    return tuple(_axis_of(name).field for name, _ in _named(texts))


def over_of(texts: Iterable[str], base: CellSpec, goal: Goal) -> tuple[Over, ...]:
    """The choices of ``--over``: each text is names of choices with commas, or ``name=value,value``; without any text
    `USUAL_OVER`. Values that are named go before usual ones. Raises `SpecError` for a choice that is none or that
    cannot be searched, and for a wrong value."""
    if base.is_collective or base.recording:
        raise SpecError("workload", base.workload, "a collective has nothing to search; cs336-tui comm times it")
    found: dict[str, Over] = {}
    named: dict[str, tuple[str, ...]] = {}
    for name, values in _named(tuple(texts) or (",".join(_usual(base)),)):
        field = _axis_of(name).field
        if field in named and bool(named[field]) == bool(values):
            raise SpecError("over", name, "named twice; give all of its values once")
        named[field] = values or named.get(field, ())
    for field, values in named.items():
        axis = AXES[field]
        given = tuple(_value_of(axis, word, values) for word in values) if values else _usual_values(axis, base, goal)
        if len(set(given)) != len(given):
            raise SpecError("over", f"{axis.option}={','.join(map(str, given))}", "names the same value twice")
        found[field] = Over(field, given)
    if "batch_size" in found and goal in SAME_TOKENS:
        if "accumulate" in found:
            why = f"with --goal {goal} the batch that is tried is a micro-batch; leave it out"
            raise SpecError("over", "accumulate", why)
        if base.pass_ != "train-step":
            why = f"with --goal {goal} each step has the same tokens, and {base.pass_} has no micro-batches; "
            raise SpecError("over", "batch", f"{why}choose --goal tokens/s, or --pass train-step")
    return tuple(found.values())


def _usual(base: CellSpec) -> Iterator[str]:
    for name in USUAL_OVER:
        if _axis_of(name).counts_in(base):
            yield name


def _named(texts: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for text in texts:
        name, equals, values = text.partition("=")
        if equals:
            words = tuple(word.strip() for word in values.split(","))
            if not all(words):
                raise SpecError("over", text, "expected NAME=VALUE,VALUE")
            if "," in name:
                raise SpecError("over", text, "values are of one choice; repeat --over for the others")
            yield name.strip(), words
        else:
            yield from ((each.strip(), ()) for each in text.split(","))


def _axis_of(name: str) -> Axis:
    named = _by_option()
    axis = named.get(name) or named.get(name.replace("_", "-"))
    if axis is None:
        raise SpecError("over", name or "(empty)", f"expected one of {', '.join(named)}")
    return axis


def _by_option() -> dict[str, Axis]:
    return {axis.option: axis for axis in searched_axes()}


def _value_of(axis: Axis, word: str, words: Sequence[str]) -> Value:
    """The value of a choice that a word says. Raises `SpecError`; if one of the `words` is a choice, of that one."""
    try:
        value: Value = axis.kind(word)
        axis.validate(value)
    except ValueError as error:
        for other in (each for each in words if each.partition("=")[0] in _by_option()):
            name = other.partition("=")[0]
            why = f"{name} is a choice, not a value of {axis.option}; repeat --over for it: --over {other}"
            raise SpecError("over", f"{axis.option}=...,{other}", why) from None
        if isinstance(error, SpecError):
            raise
        raise SpecError("over", f"{axis.option}={word}", f"expected {NUMBERS[axis.kind]}") from None
    return value


def _usual_values(axis: Axis, base: CellSpec, goal: Goal) -> tuple[Value, ...]:
    """The values of a choice that is named without any, the starting point's first."""
    now = getattr(base, axis.field)
    if axis.field == "batch_size":
        return tuple(_usual_batches(base, goal))
    values = axis.tried or axis.values
    if not values:
        some = "0,0.1" if axis.kind is float else f"{now or 1},2"
        raise SpecError("over", axis.option, f"has no values of its own; give some, such as {axis.option}={some}")
    return tuple(dict.fromkeys(values if now in _APART else (now, *values)))


def _usual_batches(base: CellSpec, goal: Goal) -> Iterator[int]:
    """Micro-batches that are the starting point's batch halved; where the batch is free, powers of two."""
    if goal in SAME_TOKENS:
        size = base.rank_batch_size
        yield size
        while size % 2 == 0:
            size //= 2
            yield size
        return
    most = max(_MOST_BATCH, _MOST_TIMES * base.batch_size)
    yield from dict.fromkeys((*(2**power for power in range(most.bit_length())), base.batch_size))
