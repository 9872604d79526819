"""From choices given by name, as flags give them, or from the cells of a run, to a sweep; from a sweep to the
command line that runs it again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cs336_tui.config.axis import Axis
from cs336_tui.config.counts import MOST_BY_TIME, Auto, auto_words, share_words
from cs336_tui.config.presets import preset
from cs336_tui.config.spec import ARGUMENTS, AXES, CUSTOM_SIZE, RAW_DIMS, CellSpec, ModelDims, SpecError
from cs336_tui.config.sweep import NO_OOM_SKIP, NOT_OF_COLLECTIVES, OF_COLLECTIVES, Sweep
from cs336_tui.config.values import LANGUAGE_MODEL, NO_MODEL, sharing_of
from cs336_tui.config.variants import is_imported, pairs_of, short, why_no_folder, why_no_module, why_not_there


def sweep_from(
    *,
    preset_name: str | None = None,
    vocab_size: int | None = None,
    of_another_too: Collection[str] = (),
    **choices: Any,
) -> Sweep:
    """The preset (or the default sweep) with the given choices in place of its own; None leaves a choice alone.

    `choices` are fields of `Sweep` (`warmups` and `steps` may be `Auto`), the raw dimensions, and `interval`, the share
    to which automatic steps narrow the interval of the mean. Raises `SpecError` when they contradict each other or
    any cell of the sweep could not be; ``auto`` and ``every`` are left for the machine to resolve. A choice that has no
    effect is refused, but left out where it is among `of_another_too`.
    """
    base = preset(preset_name).sweep if preset_name else Sweep()
    raw = {name: choices.pop(name, None) for name in RAW_DIMS}
    given = {name: value for name, value in choices.items() if value is not None and value != ()}
    asked = given | {name: value for name, value in {"vocab_size": vocab_size, **raw}.items() if value is not None}
    given |= _own_code(base, given)
    if (workload := given.get("workload", base.workload)) != base.workload:
        given = USUAL_ALONE.get(workload, {}) | given
    if set(given.get("timers", base.timers)) == {"do_bench"} != set(base.timers):
        given = DO_BENCH_USUAL | given
    given |= base.counts(*(given.pop(name, None) for name in ("warmups", "steps", "interval")))
    if vocab_size is not None:
        given["vocab_size"] = vocab_size
        if base.dims:
            given["dims"] = msgspec.structs.replace(base.dims, vocab_size=vocab_size)
    if given.get("reports") == ("none",):  # not those of the preset
        given["reports"] = ()
    if "sizes" in given and CUSTOM_SIZE not in given["sizes"]:
        given["dims"] = None
    if workload != LANGUAGE_MODEL and {name for name, value in raw.items() if value is not None} == {"num_heads"}:
        given["heads"], raw["num_heads"] = asked.pop("num_heads"), None
    if any(value is not None for value in raw.values()):
        if raw["d_ff"] is None and raw["d_model"] and all(map(is_imported, given.get("models", base.models))):
            raw["d_ff"] = 4 * raw["d_model"]
        missing = [f"--{name.replace('_', '-')}" for name, value in raw.items() if value is None]
        if missing:
            raise SpecError("raw dimensions", "incomplete", f"{', '.join(missing)} missing; give all of them")
        if "sizes" in given and CUSTOM_SIZE not in given["sizes"]:
            allowed = f"give either --size or raw dimensions, or {CUSTOM_SIZE} among the sizes"
            raise SpecError("size", ",".join(given["sizes"]), allowed)
        given["dims"] = ModelDims(**raw, vocab_size=base.vocab_size if vocab_size is None else vocab_size)
    elif preset_name and given.get("edition", base.edition) != base.edition and "sizes" not in given:
        raise SpecError("edition", given["edition"], f"changes what the sizes of {preset_name} mean; give --size too")
    sweep = msgspec.structs.replace(base, **given)
    if "checkpoints" not in given:
        sweep = sweep.with_fitting_groups()
    sweep.check()
    for field, error in _without_effect(sweep, asked).items():
        if field not in of_another_too:
            raise error
        kept = "dims" if field in RAW_DIMS else field
        sweep = msgspec.structs.replace(sweep, **{kept: getattr(base, kept)})
    for folder in sweep.model_path if sweep.own_code else ():
        if why := why_no_folder(folder):
            raise SpecError("model_path", folder, why)
    check_code(sweep)
    return sweep


def check_code(sweep: Sweep, *, here: bool = False) -> None:
    """Raise `SpecError` for code of a user's own that cannot be there, by the source of its module; where it is to run
    `here`, also for a module that there is not."""
    for axis in AXES.values() if sweep.own_code else ():
        if axis.own or axis.field == "annotations":
            values = getattr(sweep, axis.sweep)
            check_names(axis, values if isinstance(values, tuple) else (values,), sweep.model_path, here=here)


def check_names(axis: Axis, values: Iterable[Any], folders: Sequence[str], *, here: bool) -> None:
    """Raise `SpecError` as `check_code` for a value of a choice. Annotations are pairs."""
    names = [sharing_of(value[1] if isinstance(value, tuple) else str(value)).name for value in values]
    for name in filter(is_imported, names):
        if why := (here and why_no_module(name, folders)) or why_not_there(name, folders):
            raise SpecError(axis.name, name, why)


def with_model(sweep: Sweep, what: str) -> Sweep:
    """The sweep. Raises `SpecError` if its cells are collectives, of which there is no such thing as `what`."""
    if sweep.is_collective:
        raise SpecError("workload", sweep.workload, f"{NO_MODEL}, so there is no {what}; cs336-tui comm times it")
    return sweep


DO_BENCH_USUAL: dict[str, Any] = {"warmups": Auto(MOST_BY_TIME, 0.025), "steps": Auto(MOST_BY_TIME, 0.1)}
"""Defaults of timer ``do_bench``: triton's."""
USUAL_ALONE: dict[str, dict[str, Any]] = {
    "attention": {"passes": ("forward", "backward"), "contexts": (1024,), "batches": (8,)},
    "norm": {"passes": ("forward", "backward"), "contexts": (1024,), "batches": (8,), "head_dims": (1024,)},
    "collective": {**NOT_OF_COLLECTIVES, "sizes": ("10MB",), "ranks": (2,)},
}
"""Defaults of an operation alone that differ from a language model's."""


def _without_effect(sweep: Sweep, given: dict[str, Any]) -> dict[str, SpecError]:
    """The given choices that have no effect in this sweep, each with the reason."""
    alone, own = sweep.workload != LANGUAGE_MODEL, bool(sweep.own_code)
    reasons = {
        **{
            field: not any(map(is_imported, getattr(sweep, AXES[of].sweep)))
            and f"only {'an' if of[0] in 'ao' else 'a'} {of} of your own has arguments; give --{of} too"
            for field, of in ARGUMENTS.items()
        },
        "model_path": not own and "nothing of your own to look for there; give --model too",
        "annotations": not own and "nothing of your own that could call it; give --model too",
        "head_dims": not sweep.has_widths and "only with --workload attention or norm; a model's comes from its size",
        "causal": sweep.workload != "attention"
        and not sweep.causal
        and "only with --workload attention; a language model always is",
    } | dict.fromkeys(
        (*("sizes",) * sweep.has_widths, "vocab_size", *RAW_DIMS),
        alone and f"{sweep.workload} alone has no model; give --{sweep.width_key.replace('_', '-')}",
    )
    if sweep.is_collective:
        reasons |= dict.fromkeys(("contexts", "batches", "passes"), "a collective has none; leave it out")
    names = {"head_dims": "head_dim", "sizes": "size", "contexts": "context", "batches": "batch", "passes": "pass"}
    return {
        field: SpecError(names.get(field, field), _in_words(given[field]), why)
        for field, why in reasons.items()
        if why and field in given
    }


def _in_words(value: Any) -> Any:
    if not isinstance(value, tuple):
        return "no" if value is False else value
    if all(isinstance(each, tuple) for each in value):
        return ", ".join(map("=".join, value))
    return ",".join(map(str, value))


def _own_code(base: Sweep, given: dict[str, Any]) -> dict[str, Any]:
    """The folders of a user's own code, if these choices have any."""
    sweep = msgspec.structs.replace(
        base, **{a.sweep: given[a.sweep] for a in AXES.values() if a.own and a.sweep in given}
    )
    folders = own_code_folders(given.get("model_path", base.model_path), bool(sweep.own_code))
    return {"model_path": folders} if folders else {}


def own_code_folders(folders: Iterable[str], has_own_code: bool) -> tuple[str, ...]:
    """Absolute folders of a user's own code; without any the current one, if there is such code."""
    given = tuple(folders) or ((".",) if has_own_code else ())
    return tuple(str(Path(os.path.expanduser(folder)).absolute()) for folder in given)  # noqa: PTH111  # never raises


def sweep_of(specs: Sequence[CellSpec]) -> Sweep:
    """The choices whose product these cells are."""
    first, plain = specs[0], Sweep()
    found = {
        axis.sweep: tuple(dict.fromkeys(getattr(spec, field) for spec in specs))
        if axis.several
        else getattr(first, field)
        for field, axis in AXES.items()
        if axis.sweep
    }
    found |= {field: _arguments(specs, field) for field in ARGUMENTS}
    if first.warmup_auto:
        found["warmups"] = (first.warmup_steps,)
    if first.is_alone and not first.is_collective:
        widths = tuple(dict.fromkeys(spec.head_dim for spec in specs))
        found |= {"sizes": plain.sizes, "vocab_size": plain.vocab_size, "head_dims": widths, "heads": first.num_heads}
    return Sweep(**found, dims=next((spec.dims for spec in specs if spec.size == CUSTOM_SIZE), None))


def _arguments(specs: Sequence[CellSpec], field: str) -> tuple[tuple[str, str], ...]:
    """Arguments of users' own code; named ``Class.name`` if they differ between classes."""
    given: dict[str, list[tuple[tuple[str, str], ...]]] = {}
    for spec in specs:
        if is_imported(name := getattr(spec, ARGUMENTS[field])) and AXES[field].counts_in(spec):
            given.setdefault(name, []).append(getattr(spec, field))
    found = {name: pairs_of(settings) for name, settings in given.items()}
    if len({*found.values()}) <= 1:
        return next(iter(found.values()), ())
    return tuple((f"{short(name)}.{argument}", values) for name, pairs in found.items() for argument, values in pairs)


def command_of(sweep: Sweep, ddof: int = 1) -> str:
    """The headless command line that runs a sweep again; `ddof` is named when it is not the default."""
    words = ["cs336-tui", "comm" if sweep.is_collective else "bench", *_workload_words(sweep)]
    # The device after the steps, then variants, and last what is seldom changed.
    places = {"variants": 2, "more": 3}
    named = [axis for axis in AXES.values() if axis.sweep]
    for axis in sorted(named, key=lambda axis: 1 if axis.field == "device" else places.get(axis.group, 0)):
        if sweep.is_collective and axis.field not in OF_COLLECTIVES:
            continue
        words += _words_of(sweep, axis)
    if sweep.reports:
        words += ["--reports", ",".join(sweep.reports)]
    if not sweep.oom_skip:
        words.append(NO_OOM_SKIP)
    if sweep.lanes != 1:
        words += ["--lanes", str(sweep.lanes)]
    if ddof != 1:
        words += ["--ddof", str(ddof)]
    return shlex.join(words)


def _workload_words(sweep: Sweep) -> Iterator[str]:
    """The options of an operation alone, or of a model whose dimensions have no name."""
    if sweep.has_widths:
        option = f"--{sweep.width_key.replace('_', '-')}"
        yield from ("--workload", sweep.workload, option, ",".join(map(str, sweep.head_dims)))
        yield from () if sweep.heads == 1 else ("--num-heads", str(sweep.heads))
        yield from () if sweep.causal else ("--no-causal",)
    elif sweep.dims and not sweep.is_collective:
        for field, value in msgspec.structs.asdict(sweep.dims).items():
            yield from (f"--{AXES[field].option}", str(value))


def _words_of(sweep: Sweep, axis: Axis) -> Iterator[str]:
    """The option of a choice; none if it is a default that commands leave out."""
    value = getattr(sweep, axis.sweep)
    given, is_rare = value if isinstance(value, tuple) else (value,), axis.group == "variants"
    match axis.field:
        case "workload" | "causal" | "warmup_auto" | "warmup_for" | "steps_auto" | "steps_for":
            return
        case "size" if sweep.has_widths or sweep.dims_alone:
            return
        case "vocab_size" if sweep.is_alone or sweep.dims or value == axis.sweep_default:
            return
        case "model_path" | "annotations" if not sweep.own_code:
            return
        case field if field in ARGUMENTS and not any(map(is_imported, getattr(sweep, AXES[ARGUMENTS[field]].sweep))):
            return
        case "warmup_steps":
            given = sweep.warmup_words
        case "measure_steps" if sweep.steps_for is not None:
            given = (auto_words("measure_steps", sweep.steps, sweep.steps_for),)
        case "measure_steps" if sweep.steps_auto is not None:
            given = (auto_words("measure_steps", sweep.steps), "--interval", share_words(sweep.steps_auto))
            yield from ("--steps", *given)
            return
    if axis.widget in ("pairs", "pieces"):
        for each in given:
            yield from (f"--{axis.option}", each if isinstance(each, str) else "=".join(each))
    elif axis.kind is bool:
        yield from () if value == axis.sweep_default else (f"--{'' if value else 'no-'}{axis.option}",)
    elif value is not None and (not is_rare or value != axis.sweep_default):
        yield from (f"--{axis.option}", ",".join(map(str, given)))
