"""A user's own loss and optimizer from their names, and what a user's functions are like."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.variants import short
from cs336_tui.worker.workload.compiling import nothing_compiled
from cs336_tui.worker.workload.imported.argument_binding import parameters_of, signature_in_words
from cs336_tui.worker.workload.imported.finding import find
from cs336_tui.worker.workload.imported.problems import ImportProblem, a_kind, explained, in_one_line, is_interrupt

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, T, V) and targets (B, T) to a number."""

_LEARNING_RATE = 1e-3
"""For an optimizer that has no default: that of torch's AdamW."""
_TRIED = (2, 3, 5)
"""B, T and V of the logits with which a loss is tried, all different."""


def imported_loss(name: str, paths: tuple[str, ...]) -> Loss:
    """The named function, or an instance of the named class; one that wants flat logits (B T, V) and targets (B T,) is
    given these.

    Which it is shows when it is called with a few numbers here, on the CPU, or on CUDA if that is awake and only there
    it works. Raises `ImportProblem` for one that works neither way.
    """
    found = find(name, paths)
    if isinstance(found, type):
        wanted = parameters_of(found) or {}
        if needed := _required(wanted):
            raise ImportProblem(
                f"{signature_in_words(name, wanted)} needs {needed[0]}, which has no default; a loss is a function of "
                f"logits and targets, or a class made without arguments whose objects are one"
            )
        with explained(short(name)):
            found = found()
    if not callable(found):
        raise ImportProblem(f"{name} is {a_kind(found)}, expected a function of logits and targets")
    loss: Loss = found

    def of_flat(logits: Tensor, targets: Tensor) -> Tensor:
        return loss(logits.flatten(0, 1), targets.flatten())

    with nothing_compiled():
        return of_flat if _wants_flat(name, loss) else loss


def _wants_flat(name: str, loss: Loss) -> bool:
    problem: ImportProblem | None = None
    for device in ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",):
        batch, length, vocabulary = _TRIED
        steps = torch.arange(batch * length * vocabulary, dtype=torch.float32, device=device)
        logits, targets = steps.sin().reshape(_TRIED), torch.arange(batch * length, device=device) % vocabulary
        whole, problem_of_whole = _tried(name, loss, logits, targets.reshape(batch, length))
        flat, problem_of_flat = _tried(name, loss, logits.flatten(0, 1), targets)
        if whole is not None and flat is not None:
            # Of two answers the right one counts; both are where the mean is over all tokens anyway.
            right = F.cross_entropy(logits.flatten(0, 1), targets).item()
            return abs(flat - right) < 1e-4 < abs(whole - right)
        if whole is not None or flat is not None:
            return whole is None
        problem = problem or problem_of_flat or problem_of_whole
    assert problem is not None
    raise problem


def _tried(name: str, loss: Loss, logits: Tensor, targets: Tensor) -> tuple[float, None] | tuple[None, ImportProblem]:
    """The loss, or why there is none."""
    try:
        with torch.no_grad():
            found: Any = loss(logits, targets)
    except BaseException as error:
        if is_interrupt(error):
            raise
        problem = ImportProblem(f"loss {short(name)}: {in_one_line(error)}")
        problem.__cause__ = error
        return None, problem
    if not isinstance(found, Tensor):
        return None, ImportProblem(f"loss {short(name)} returned {a_kind(found)}, expected a tensor")
    if found.numel() != 1:
        return None, ImportProblem(f"loss {short(name)} returned shape {tuple(found.shape)}, expected one number")
    return float(found), None


def imported_optimizer(name: str, paths: tuple[str, ...], parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The named class, or what the named function makes, over these parameters, all else as it is by default.

    A learning rate without a default is 1e-3. Raises `ImportProblem` if it wants more, or is no optimizer.
    """
    found = find(name, paths)
    if not callable(found):
        raise ImportProblem(f"{name} is {a_kind(found)}, expected a class of torch.optim.Optimizer")
    wanted = parameters_of(found) or {}
    required = _required(wanted)
    others = [argument for argument in required[1:] if argument != "lr"]
    if others:
        raise ImportProblem(
            f"{signature_in_words(name, wanted)} needs {others[0]}, which has no default; name a function of the "
            f"parameters that gives it"
        )
    options = {"lr": _LEARNING_RATE} if "lr" in required else {}
    with explained(short(name)):
        optimizer = found(list(parameters), **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ImportProblem(f"{name} made {a_kind(optimizer)}, expected a torch.optim.Optimizer")
    return optimizer


def _required(wanted: Mapping[str, inspect.Parameter]) -> list[str]:
    """Names of the arguments that have no default."""
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in wanted.values() if p.default is p.empty and p.kind not in stars]
