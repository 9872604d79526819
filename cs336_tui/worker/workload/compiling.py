"""torch.compile: its requirements, the compiled form of a model, and counts of its work."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from cs336_tui.config.values import CAPTURING, Compile

_OFF = "or choose --compile off"
_WRAPPER = str(Path("torch", "nn", "parallel", "distributed.py"))


class Compilations(NamedTuple):
    """Counts of torch.compile's work in this process."""

    frames: int  # Functions, or parts of them, that it took up to compile; again for each time
    graphs: int  # Graphs that it made of them
    breaks: int  # Places at which it had to end a graph, in the order of `break_reasons`


def why_cannot_compile(device_type: str) -> str | None:
    """The requirement of torch.compile that this kind of device lacks, in one line; None if none is known."""
    try:
        torch.compile(backend="inductor")  # without a model it only checks Python's version
    except RuntimeError as error:
        return f"{str(error).splitlines()[0]}; use another Python, {_OFF}"
    if device_type == "cuda" and find_spec("triton") is None:
        return f"torch.compile needs Triton on CUDA: install the package triton, {_OFF}"
    if device_type not in ("cpu", "cuda"):
        return None
    # The compiler's language, the variable that names it, the usual commands: Inductor's `cpp.cxx`, Triton's.
    cxx = ("clang++",) if sys.platform == "darwin" else ("g++",)
    language, variable, usual = ("C", "CC", ("gcc", "clang")) if device_type == "cuda" else ("C++", "CXX", cxx)
    named = os.environ.get(variable)
    if named and shutil.which(named) is None:
        return f"torch.compile needs a {language} compiler and {variable}={named} names none: set it to one, {_OFF}"
    if not named and not any(map(shutil.which, usual)):
        return f"torch.compile needs a {language} compiler: install {usual[0]} or set {variable} to one, {_OFF}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return f"torch.compile needs the headers of Python (Python.h): install python3-dev, or what brings them, {_OFF}"
    return None


def compiled(model: nn.Module, mode: Compile, device: torch.device) -> nn.Module:
    """The model, to be compiled at its first call. Raises ValueError, in one line, if torch.compile cannot work."""
    if why := why_cannot_compile(device.type):
        raise ValueError(f"compile {mode}: {why}")
    made: nn.Module = torch.compile(model, mode=None if mode == "default" else mode)
    return made


def nothing_compiled() -> AbstractContextManager[object]:
    """A context in which a user's compiled code runs uncompiled: a trial would compile it for the trial's sizes."""
    if "torch._dynamo" not in sys.modules:  # not imported, which takes a second: nothing was compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def captures(mode: Compile, device_type: str) -> bool:
    """True if torch.compile captures CUDA graphs in this mode, in its first calls."""
    return mode in CAPTURING and device_type == "cuda"


def compilations() -> Compilations:
    """The counts so far. Takes microseconds and imports nothing."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return Compilations(0, 0, 0)
    counters = utils.counters
    return Compilations(
        counters["frames"]["total"], counters["stats"]["unique_graphs"], len(getattr(utils, "graph_break_reasons", ()))
    )


def break_reasons(since: Compilations) -> tuple[str, ...]:
    """Reasons of the graph breaks since then, a line each: place in the model's source, and what was not compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    reasons = getattr(utils, "graph_break_reasons", [])[since.breaks :]
    broken = (
        each
        for each in reasons
        if getattr(each, "graph_break", True) and not _is_of_wrapper(each.reason, each.user_stack)
    )
    return tuple(dict.fromkeys(_break_line(each.reason, each.user_stack) for each in broken))


def _is_of_wrapper(reason: object, stack: Sequence[object]) -> bool:
    """True if torch's DistributedDataParallel ends the graph, which it does round every model."""
    within = any(str(getattr(frame, "filename", "")).endswith(_WRAPPER) for frame in stack)
    return within or "`DistributedDataParallel." in str(reason)


def _break_line(reason: object, stack: Sequence[object]) -> str:
    """The reason in one line: the first sentence of torch's explanation."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    explained = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    text = explained or (lines[0] if lines else "for a reason that torch does not give")
    text = text.removeprefix("Dynamo does not know how to ").partition(". ")[0].rstrip(".")
    frame = stack[-1] if stack else None
    name, line = getattr(frame, "filename", None), getattr(frame, "lineno", None)
    return f"{Path(name).name}, line {line}: {text}" if name else text


def forget_compiled() -> None:
    """Drop everything that was compiled in this process."""
    if "torch._dynamo" not in sys.modules:
        return
    torch._dynamo.reset()
    if (inductor := sys.modules.get("torch._inductor.utils")) is not None:
        # Its name from torch 2.6 on.
        getattr(inductor, "clear_inductor_caches", lambda: None)()


def forget_sizes() -> None:
    """Make torch.compile forget the sizes that functions met: once they differ, in any model, it else makes code for
    any size. Keeps compiled code. Takes microseconds and imports nothing."""
    if (pgo := sys.modules.get("torch._dynamo.pgo")) is not None:
        pgo.reset_code_state()


def effective_compiler(model: nn.Module) -> str | None:
    """Backend and options of a compiled model, in words; None for an uncompiled one."""
    context = getattr(model, "dynamo_ctx", None)
    if context is None:
        return None
    backend = getattr(context, "callback", None)
    while backend is not None and not hasattr(backend, "compiler_name"):
        older = getattr(backend, "_torchdynamo_orig_callable", None)
        backend = getattr(backend, "_torchdynamo_orig_backend", None) or older
    if backend is None:
        return "torch.compile"
    options = getattr(backend, "config", None) or {}
    return ", ".join([str(backend.compiler_name), *(f"{name}={value}" for name, value in sorted(options.items()))])
