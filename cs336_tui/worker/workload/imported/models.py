"""A user's own model from its name: imported, given the dimensions by name, made on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.worker.workload.batch import Batch
from cs336_tui.worker.workload.imported.argument_binding import call, dims_not_taken, names_unseen, values_of
from cs336_tui.worker.workload.imported.finding import find
from cs336_tui.worker.workload.imported.problems import ImportProblem, a_kind, explained, of_code, text_of


class ImportedModel(NamedTuple):
    """A user's model on its device; `batch` where the user makes that too; dimensions that it did not ask for."""

    model: nn.Module
    batch: Batch | None
    not_taken: tuple[str, ...] = ()


def import_model(spec: CellSpec, device: torch.device, dtype: torch.dtype) -> ImportedModel:
    """Raises `ImportProblem`, in one line with the user's own frame, for whatever goes wrong on the way."""
    factory = find(spec.model, spec.model_path)
    name = short(spec.model)
    with of_code(spec.model):
        if not callable(factory) or isinstance(factory, nn.Module):
            raise ImportProblem(f"{spec.model} is {a_kind(factory)}, expected a class or a function that makes a model")
    values = values_of(spec, device, dtype)
    torch.manual_seed(spec.seed)
    with of_code(spec.model), explained(name, _hint(factory, device)), torch.device(device):
        made = call(spec.model, factory, values, spec.model_args)
    model, make_batch = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ImportProblem(f"{name} made {a_kind(model)}, expected a torch.nn.Module, or that and a batch function")
    if make_batch is not None and not callable(make_batch):
        raise ImportProblem(f"{name} made a model and {a_kind(make_batch)}, expected a function that makes a batch")
    with explained(name):
        settle(model, device, dtype)
        model.train(spec.pass_ != "inference")  # in which dropout does nothing
    batch = None if make_batch is None else _batch(make_batch, spec, values, device)
    return ImportedModel(model, batch, dims_not_taken(factory, values, spec.model_args))


def settle(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Bring what lies elsewhere to the device and, unless that is float32, floating-point numbers to `dtype`.

    Buffers are converted with the parameters, as ``model.to(dtype)`` does, but for complex ones.
    """
    held = [*model.parameters(), *model.buffers()]
    if any(not _is_on(tensor, device) for tensor in held):
        model.to(device)
    if dtype == torch.float32:
        return
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_floating_point() and buffer.dtype != dtype:
                setattr(module, name, buffer.to(dtype))


def _is_on(tensor: Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and (tensor.device.index or 0) == (device.index or 0)


def _batch(
    function: Callable[..., Any], spec: CellSpec, values: dict[str, object], device: torch.device
) -> Batch | None:
    """What the user's function makes; None on the meta device where it cannot be made."""
    what = f"batch function {getattr(function, '__name__', type(function).__name__)}"
    torch.manual_seed(spec.seed)
    try:
        with explained(what), torch.device(device):
            made = call(what, function, values)
    except ImportProblem:
        if device.type == "meta":
            return None
        raise
    if not (isinstance(made, tuple | list) and len(made) == 2 and all(isinstance(part, Tensor) for part in made)):
        raise ImportProblem(f"{what} made {a_kind(made)}, expected two tensors: inputs and targets")
    expected = (spec.batch_size, spec.context_length)
    for part, tensor in zip(("inputs", "targets"), made, strict=True):
        if tuple(tensor.shape) != expected:
            raise ImportProblem(
                f"{what} made {part} of shape {tuple(tensor.shape)}, expected {expected}: batch, context length"
            )
    return Batch(*(tensor if _is_on(tensor, device) else tensor.to(device) for tensor in made))


def _hint(factory: Callable[..., Any], device: torch.device) -> Callable[[BaseException], str]:
    def hint(error: BaseException) -> str:
        if device.type != "cuda" and ("CUDA" in text_of(error) or "NVIDIA driver" in text_of(error)):
            return f"; it asks for CUDA itself, though this cell runs on {device}: let it take device as an argument"
        if isinstance(error, TypeError) and "missing" in text_of(error) and names_unseen(factory):
            return "; what it hands on by ** cannot be seen: let it name the dimensions that it wants"
        return ""

    return hint
