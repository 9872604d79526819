"""The command line that runs a sweep again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from cs336_tui.config.axis import Axis
from cs336_tui.config.counts import auto_words, share_words
from cs336_tui.config.spec import AXES
from cs336_tui.config.sweep import NO_OOM_SKIP, OF_COLLECTIVES, Sweep
from cs336_tui.config.variants import is_imported


def command_of(sweep: Sweep, ddof: int = 1) -> str:
    """The headless command line that runs a sweep again; `ddof` is named when it is not the default."""
    words = ["cs336-tui", "comm" if sweep.is_collective else "bench", *_workload_words(sweep)]
    for axis in sorted((axis for axis in AXES.values() if axis.sweep), key=_place_in_command):
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
    given = value if isinstance(value, tuple) else (value,)
    match axis.field:
        case "workload" | "causal" | "warmup_auto" | "warmup_for" | "steps_auto" | "steps_for":
            return
        case "size" if sweep.has_widths or sweep.dims_alone:
            return
        case "vocab_size" if sweep.is_alone or sweep.dims:
            return
        case "model_path" | "annotations" if not sweep.own_code:
            return
        case "model_args" if not any(map(is_imported, sweep.models)):
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
    elif value is not None and not (axis.is_rare and value == axis.sweep_default):
        yield from (f"--{axis.option}", ",".join(map(str, given)))


def _place_in_command(axis: Axis) -> int:
    """The device after the steps, then variants, and last what is seldom changed."""
    return 1 if axis.field == "device" else {"variants": 2, "more": 3}.get(axis.group, 0)
