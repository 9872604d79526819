"""Names the phases of a step and the parts of its model, for profilers, NVTX and the memory tracker."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

from cs336_tui.config.variants import RANGES, Range
from cs336_tui.worker.workload.import_problems import ImportProblem, explained
from cs336_tui.worker.workload.imported_modules import attribute_of
from cs336_tui.worker.workload.model_parts import part_of_each
from cs336_tui.worker.workload.norms import NormOnly, OperationAlone, OwnNorm
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.precision import Context
from cs336_tui.worker.workload.transformer import AttentionSteps, Transformer

Around = Callable[[str], AbstractContextManager[object]]  # Makes the context of a part of this name
Annotation = tuple[str, str]  # A range, and the ``package.module:function`` that makes it up

_USUAL: dict[str, str] = {"scaled_dot_product_attention": "attention core", "softmax": "softmax"}
"""Functions beside a user's attention that are annotated by their names."""
_NEVER_USERS = ("torch", "cs336_tui")  # Packages whose imports of an annotated function are not patched
_FUSED: Annotation = "attention core", f"{F.__name__}:scaled_dot_product_attention"


class _Patch(NamedTuple):
    """An attribute that is the function, in its own module or imported by name, and the wrapper of its value."""

    owner: Any
    name: str
    wrap: Callable[[Any], Any]


def annotated_functions(model: nn.Module, annotations: Sequence[Annotation], around: Around) -> Context:
    """Makes contexts, which nest, in which each function runs inside ``around(its range)``. A class of modules means
    the forward of those in the model, which stays wrapped. The first annotation of a function counts. Raises
    `ImportProblem` for an unknown range or function."""
    seen: list[object] = []
    patches: list[_Patch] = []
    for range_, name in annotations:
        if range_ not in RANGES:
            problem = f"no such part of a model; expected one of {', '.join(RANGES)}"
            raise ImportProblem(f"annotate {range_}={name}: {problem}")
        owner, attribute, found = _find(range_, name)
        if any(each is found for each in seen):
            continue
        seen.append(found)
        if isinstance(found, type) and issubclass(found, nn.Module):
            for module in model.modules():
                if isinstance(module, found):
                    setattr(module, "forward", _inside(getattr(module, "forward"), partial(around, range_)))  # noqa: B009, B010
        else:
            patches += _patches(owner, attribute, found, range_, around)
    return _scope(patches)


def default_annotations(modules: Iterable[nn.Module]) -> Iterator[Annotation]:
    """Annotations of functions with a usual name in these modules' files, and of torch's fused attention."""
    homes = dict.fromkeys(type(module).__module__ for module in modules)
    for home in homes:
        for function, range_ in _USUAL.items():
            found = vars(sys.modules.get(home, None) or object).get(function)
            if inspect.isfunction(found) and not found.__module__.startswith("torch."):
                yield range_, f"{home}:{function}"
    yield _FUSED


def _find(range_: str, name: str) -> tuple[Any, str, Any]:
    """The function's owner, its name there, and the function."""
    home, _, path = name.partition(":")
    asked = f"annotate {range_}={name}"
    with explained(asked):
        module = import_module(home)
    try:
        owner, function = attribute_of(module, home, path)
    except ImportProblem as problem:
        raise ImportProblem(f"{asked}: {problem}") from None
    if not callable(function):
        raise ImportProblem(f"{asked}: it is no function but {type(function).__name__}")
    if isinstance(function, type) and issubclass(function, Function):
        return function, "apply", getattr(function, "apply")  # noqa: B009
    return owner, path.rpartition(".")[2], function


def _patches(owner: Any, attribute: str, found: Any, range_: str, around: Around) -> Iterator[_Patch]:
    def inside(inner: Any) -> Any:
        return _inside(inner, partial(around, range_))

    if isinstance(owner, type):
        is_method = inspect.isfunction(inspect.getattr_static(owner, attribute))  # it gets its object
        yield _Patch(owner, attribute, inside if is_method else lambda inner: staticmethod(inside(inner)))
        return
    for place, module in [*sys.modules.items()]:
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and (module is owner or place.partition(".")[0] not in _NEVER_USERS):
            yield from (_Patch(module, name, inside) for name in [*names] if names[name] is found)


def _inside(inner: Callable[..., Any], context: Context) -> Callable[..., Any]:
    @wraps(inner)
    def named(*args: Any, **kwargs: Any) -> Any:
        with context():
            return inner(*args, **kwargs)

    return named


def _scope(patches: Sequence[_Patch]) -> Context:
    """Contexts, which nest: the outermost applies the patches, its exit removes them."""
    depth = 0

    @contextmanager
    def entered() -> Iterator[None]:
        nonlocal depth
        with ExitStack() as applied:
            for owner, name, wrap in () if depth else patches:
                applied.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))
            depth += 1
            try:
                yield
            finally:
                depth -= 1

    return entered


Part = tuple[nn.Module, str, Range]  # A module, the method of it that does the part's work, the part

_ATTENTION_METHODS: dict[str, Range] = {
    "score": "attention scores", "weigh": "softmax", "mix": "final matmul", "attend": "attention core",
}  # fmt: skip
"""Methods of the reference attention between its projections."""


def name_parts(model: nn.Module, around: Around, annotations: Sequence[Annotation] = ()) -> None:
    """Make every part of the model run inside ``around(its range)``, permanently. Ranges nest; the innermost counts.
    Parts are found by name and class; `annotations` add functions, and in a user's model precede default ones. Raises
    `ImportProblem`, in one line, for an annotation of an unknown range or function."""
    own = isinstance(model, Transformer | OperationAlone)
    parts: list[Part] = [(module, "forward", part) for module, part in part_of_each(model).items()]
    functions = [*annotations, *(() if own else default_annotations(module for module, _, _ in parts))]
    if functions:
        # Blocks too, as a checkpointed block is recomputed outside the model's forward.
        scope = annotated_functions(model, functions, around)
        for module in dict.fromkeys((model, *(module for module, _, name in parts if name == "residual"))):
            _wrap(module, "forward", scope)
    if own:
        parts = [*_own_parts(model, parts)]
    for module, method, name in parts:
        _wrap(module, method, partial(around, name))


def _own_parts(model: nn.Module, by_name: Iterable[Part]) -> Iterator[Part]:
    """The parts of the reference model, or of an operation alone: `by_name` and steps of attention."""
    if isinstance(model, OperationAlone):
        yield model, "forward", "norms" if isinstance(model, NormOnly) else "attention core"
    else:
        yield model, "forward", "embedding"  # outside its parts it only embeds tokens and positions
        own = [module for module in model.modules() if isinstance(module, OwnNorm)]
        inside = {part for norm in own for part in norm.modules()}
        yield from (part for part in by_name if part[2] != "embedding" and part[0] not in inside)
        yield from ((norm, "forward", "norms") for norm in own)
    for module in model.modules():
        for method, part in _ATTENTION_METHODS.items():
            if isinstance(module, AttentionSteps) and hasattr(module, method):
                yield module, method, part


def _wrap(owner: nn.Module, method: str, context: Context) -> None:
    setattr(owner, method, _inside(getattr(owner, method), context))


PHASE, RANGE = "phase/", "range/"  # Prefixes of the names of phases and of ranges
READY = "ready/"  # of marks: the pass of a module could begin, but for weights that are still to come


def name_step(step: Step, model: nn.Module | None, around: Around, annotations: Sequence[Annotation] = ()) -> None:
    """Make every phase run inside ``around("phase/forward")`` and so on, every part inside ``around("range/norms")``.
    Without a model only phases are named: names of parts would break a compiled model's graphs. Permanent: not for a
    step whose time is reported without a remark."""
    if model is not None:
        name_parts(model, lambda name: around(RANGE + name), annotations)
    run = step.run

    @wraps(run)
    def named(phase: str) -> Any:
        with around(PHASE + phase):
            return run(phase)

    setattr(step, "run", named)  # noqa: B010


UNAVAILABLE = (
    "no NVTX ranges: this torch was built without CUDA, which brings NVTX; nsys sees the process without named parts"
)


def under_nsys() -> bool:
    """True if NVIDIA's nsys started this process, which sets this variable."""
    return "NSYS_PROFILING_SESSION_ID" in os.environ


def available() -> bool:
    """True if torch can emit NVTX ranges."""
    try:
        torch.cuda.nvtx.range_push("check")
        torch.cuda.nvtx.range_pop()
    except RuntimeError:  # "NVTX functions not installed"
        return False
    return True


def nvtx_range(name: str) -> AbstractContextManager[object]:
    """A context that is an NVTX range of this name on the calling thread."""
    entered: AbstractContextManager[object] = torch.cuda.nvtx.range(name)
    return entered


def emit_ranges(step: Step, model: nn.Module | None, annotations: Sequence[Annotation] = ()) -> None:
    """Make the step emit NVTX ranges of its phases (``forward``) and, with a model, of its parts (``norms``). Backward
    has its phase only: its kernels belong to no part on the thread that launches them."""
    name_step(step, model, lambda name: nvtx_range(name.partition("/")[2]), annotations)
