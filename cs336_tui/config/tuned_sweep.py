"""A search from a sweep: its starting point, the choices that are searched and the values that ``--over`` names of
them, and the command line that searches again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from cs336_tui.config.axis import NUMBERS, Axis, SpecError
from cs336_tui.config.choices import check_names, command_of, own_code_folders, sweep_of
from cs336_tui.config.counts import MOST_BY_TIME, duration_words, share_words
from cs336_tui.config.spec import ARGUMENTS, AXES, CellSpec
from cs336_tui.config.sweep import UNRESOLVED, Sweep
from cs336_tui.config.tuning import COUNTS, SAME_TOKENS, Goal, Over, Tuning, Value, check_budget, check_goal, space_of
from cs336_tui.config.values import canonical_device, size_words
from cs336_tui.config.variants import Pairs, expected, is_imported, module_named, settings_of, values_in

USUAL_OVER = tuple(axis.option for axis in AXES.values() if axis.searched)
"""The choices that are searched if none is named: those that do not change results."""
_APART = ("none",)
"""Values of the starting point that are other work beside the others: ranks that train a model each."""
_MOST_BATCH, _MOST_TIMES = 64, 8
"""The largest batch that is tried if none is named: this, or so many times the starting point's."""
_NOT_SEARCHED = {
    "device", "warmup_steps", "measure_steps", "seed", "sync", "timer", "flush_l2", "within", "workload", "inputs",
    "check",
}  # fmt: skip
_NOT_SEARCHED |= {"size", "context_length", "pass_", "causal", "collective", "model_path", "annotations"}
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
    found: list[Over] = []
    named: dict[str, tuple[str, ...]] = {}
    arguments: dict[str, list[tuple[str, str]]] = {}
    usual = ",".join(name for name in USUAL_OVER if _axis_of(name).counts_in(base))
    for name, values in _named(tuple(texts) or (usual,)):
        field, argument = _axis_of(name).field, name.partition(".")[2]
        if field in ARGUMENTS:
            if not (argument and values):
                example = (
                    f"name an argument with its values, such as {AXES[field].option}.{argument or 'BLOCK_M'}=16,32"
                )
                raise SpecError("over", name, example)
            arguments.setdefault(field, []).append((argument, ",".join(values)))
            continue
        if field in named and bool(named[field]) == bool(values):
            raise SpecError("over", name, "named twice; give all of its values once")
        named[field] = values or named.get(field, ())
    for field, values in named.items():
        axis = AXES[field]
        given = tuple(_value_of(axis, word, values) for word in values) if values else _usual_values(axis, base, goal)
        if len(set(given)) != len(given):
            raise SpecError("over", f"{axis.option}={','.join(map(str, given))}", "names the same value twice")
        found.append(Over(field, given))
    for field, pairs in arguments.items():
        held: Pairs = getattr(base, field)
        if len(dict(pairs)) < len(pairs) or any(len({*values_in(text)}) < len(values_in(text)) for _, text in pairs):
            raise SpecError("over", AXES[field].option, "names the same value twice")
        found.append(Over(field, tuple(tuple((dict(held) | dict(each)).items()) for each in settings_of(tuple(pairs)))))
    if "batch_size" in named and goal in SAME_TOKENS:
        if "accumulate" in named:
            why = f"with --goal {goal} the batch that is tried is a micro-batch; leave it out"
            raise SpecError("over", "accumulate", why)
        if base.pass_ != "train-step":
            why = f"with --goal {goal} each step has the same tokens, and {base.pass_} has no micro-batches; "
            raise SpecError("over", "batch", f"{why}choose --goal tokens/s, or --pass train-step")
    return tuple(found)


def _named(texts: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for text in texts:
        name, equals, values = text.partition("=")
        if equals:
            words = values_in(values)
            if not all(words) or "" in map(str.strip, values.split(",")):
                raise SpecError("over", text, "expected NAME=VALUE,VALUE")
            if "," in name:
                raise SpecError("over", text, "values are of one choice; repeat --over for the others")
            yield name.strip(), words
        else:
            yield from ((each.strip(), ()) for each in text.split(","))


def _axis_of(name: str) -> Axis:
    named = {axis.option: axis for axis in searched_axes()}
    axis = named.get(name) or named.get(name.replace("_", "-"))
    whole = named.get(name.partition(".")[0])  # of arguments, each of which is named
    axis = axis or (whole if whole and whole.arguments_of else None)
    if axis is None:
        raise SpecError("over", name or "(empty)", expected(name, named, see="`cs336-tui tune --help` says more"))
    return axis


def _value_of(axis: Axis, word: str, words: Sequence[str]) -> Value:
    """The value of a choice that a word says. Raises `SpecError`; if one of the `words` is a choice, of that one."""
    try:
        value: Value = axis.kind(module_named(word) if axis.own else word)
        axis.validate(value)
    except ValueError as error:
        names = [each.option for each in searched_axes()]
        for other in (each for each in words if each.partition("=")[0] in names):
            what = f"{other.partition('=')[0]} is a choice, not a value of {axis.option}"
            why = f"{what}; repeat --over for it: --over {other}"
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


VISIT = (3, 5)
"""Warm-up and measured steps of a visit if nobody chooses."""
_OF_VISIT = (*COUNTS, "timer")
"""Choices that a visit and a whole run make each for themselves."""


ENERGY_STEPS_S = 2.0
"""Seconds of steps of a visit with goal ``tokens/J``: the energy counter, read twice a second, needs one second."""


def _observable(tuning: Tuning) -> Tuning:
    """The tuning, with as many steps a visit as its goal needs."""
    base = tuning.base
    if tuning.goal != "tokens/J" or base.steps_auto is not None or (base.steps_for or 0.0) >= ENERGY_STEPS_S:
        return tuning
    longer = msgspec.structs.replace(base, steps_for=ENERGY_STEPS_S, measure_steps=MOST_BY_TIME)
    return msgspec.structs.replace(tuning, base=longer)


class Search(NamedTuple):
    """A search that is asked for. `start` is the sweep of its one starting point, whose device may still be ``auto``;
    `asked` is the tuning as if the device that the machine chooses were the CPU, for what can be checked without it."""

    start: Sweep
    asked: Tuning

    def tuning(self, base: CellSpec) -> Tuning:
        """The tuning whose starting point is the cell of `start` on the device that it comes to."""
        of_visit = {field: getattr(self.asked.base, field) for field in _OF_VISIT}
        return msgspec.structs.replace(self.asked, base=msgspec.structs.replace(base, **of_visit), run=base)

    def check(self) -> None:
        """Raise `SpecError` for what can be seen to be wrong before the machine is asked."""
        if self.start.devices[0] not in UNRESOLVED:
            check_goal(self.asked.goal, canonical_device(self.start.devices[0]))
        check_budget(self.asked)
        space_of(self.asked)


def search_of(
    sweep: Sweep,
    texts: Sequence[str],
    goal: Goal,
    budget_s: float,
    limit: dict[str, Any],
    *,
    visit: tuple[int, int] = VISIT,
    model_path: tuple[str, ...] = (),
    **arguments: Pairs,
) -> Search:
    """The search of the choices that ``--over`` names; without any of those with several values in the sweep, or the
    usual ones. `limit` is `within_bytes` or `within_share`, `visit` the warm-up and measured steps of a visit;
    `model_path` and `arguments`, by field, are of a user's own code among the values. Raises `SpecError`."""
    start = start_of(sweep, fields_of(texts) if texts else None)
    base = start.resolved_to("cpu").cells()[0]
    several = {axis.field: values for axis in searched_axes() if len(values := _tried(sweep, axis)) > 1}
    over = tuple(map(Over, several, several.values())) if several and not texts else over_of(texts, base, goal)
    is_own = any(isinstance(value, str) and is_imported(value) for each in over for value in each.values)
    folders = own_code_folders(model_path or sweep.model_path, is_own or bool(sweep.own_code))
    for each in over:
        if AXES[each.field].own:
            check_names(AXES[each.field], each.values, folders, here=True)
    counts = {field: AXES[field].default for field in _OF_VISIT}
    counts |= {"warmup_steps": visit[0], "measure_steps": visit[1]}
    same: dict[str, Any] = {f: settings_of(arguments.get(f) or getattr(sweep, f))[0] for f in ARGUMENTS}
    asked = Tuning(
        base=msgspec.structs.replace(base, **counts),
        over=over,
        goal=goal,
        budget_s=budget_s,
        run=base,
        model_path=folders,
        **same,
        **limit,
    )
    return Search(start, _observable(asked))


def start_of(sweep: Sweep, searched: Collection[str] | None = None) -> Sweep:
    """The first value of each searched choice, by field; None: of each that can be searched. Raises `SpecError` where
    another choice has several values."""
    fields = {axis.field for axis in searched_axes()} if searched is None else searched
    first: dict[str, Any] = {"reports": (), "lanes": 1}
    for field, axis in AXES.items():
        values = _tried(sweep, axis)
        if field == "size" and sweep.has_widths:
            values = sweep.head_dims
        if len(values) > 1 and field not in fields:
            words = ("; " if field in ARGUMENTS else ",").join(Over(field, values).words)
            may = f", or search --over {axis.option}" if axis in searched_axes() else ""
            raise SpecError(axis.option, words, f"the starting point is one cell; give one of these{may}")
        if len(values) > 1:
            first[axis.sweep] = values[0] if field in ARGUMENTS else values[:1]
    return msgspec.structs.replace(sweep, **first)


def _tried(sweep: Sweep, axis: Axis) -> tuple[Any, ...]:
    """The values of a choice in a sweep, if it may have several."""
    if axis.field in ARGUMENTS:
        return settings_of(getattr(sweep, axis.sweep))
    return getattr(sweep, axis.sweep) if axis.sweep and axis.several else ()


def command_of_search(tuning: Tuning) -> str:
    """The command line that searches again."""
    base = tuning.base
    if base.steps_for is not None:  # a number of steps, as ``--steps`` takes it; a `Search` gives it the time again
        base = msgspec.structs.replace(base, steps_for=None, measure_steps=VISIT[1])
    start = msgspec.structs.replace(sweep_of([base]), within=None)
    words = [word for each in tuning.over for text in each.texts for word in ("--over", text)]
    words += ["--goal", tuning.goal]
    if tuning.within_share is not None:
        words += ["--within", share_words(tuning.within_share)]
    if tuning.within_bytes is not None:
        words += ["--within", size_words(tuning.within_bytes)]
    words += ["--budget", duration_words(tuning.budget_s)]
    for field in (field for field, code in ARGUMENTS.items() if not is_imported(getattr(base, code))):
        words += [w for name, value in getattr(tuning, field) for w in (f"--{AXES[field].option}", f"{name}={value}")]
    if not base.brings_own_code:
        words += [word for folder in tuning.model_path for word in ("--model-path", folder)]
    return f"{command_of(start).replace(' bench ', ' tune ', 1)} {shlex.join(words)}"


def sweep_of_candidate(tuning: Tuning, spec: CellSpec) -> Sweep:
    """The sweep that runs a candidate alone, with the steps of a whole run."""
    return sweep_of([tuning.as_run(spec)])
