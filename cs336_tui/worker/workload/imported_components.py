"""A user's own model, attention, norm, loss and optimizer, made from their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import Pairs, short
from cs336_tui.worker.workload import imported_arguments as binding
from cs336_tui.worker.workload.compile_and_capture import nothing_compiled
from cs336_tui.worker.workload.import_problems import (
    ImportProblem,
    explained,
    in_one_line,
    kind_of,
    message_of,
    of_code,
    raise_interrupt,
)
from cs336_tui.worker.workload.imported_arguments import signature_text
from cs336_tui.worker.workload.imported_modules import find
from cs336_tui.worker.workload.norms import NormFunction
from cs336_tui.worker.workload.transformer import Batch, Loss


class ImportedModel(NamedTuple):
    """A user's model on its device, its batch if the user makes one, and dimensions that it did not ask for."""

    model: nn.Module
    batch: Batch | None
    not_taken: tuple[str, ...] = ()


def import_model(spec: CellSpec, device: torch.device, dtype: torch.dtype, rank: int = 0) -> ImportedModel:
    """Import and make the spec's model, alike on every rank, and the batch of this one. Raises `ImportProblem`, one
    line with the user's own frame."""
    factory = find(spec.model, spec.model_path)
    name = short(spec.model)
    with of_code(spec.model):
        if not callable(factory) or isinstance(factory, nn.Module):
            kind = kind_of(factory)
            raise ImportProblem(f"{spec.model} is {kind}, expected a class or a function that makes a model")
    values = binding.values_of(spec, device, dtype)
    torch.manual_seed(spec.seed)
    where = _OnMeta() if device.type == "meta" else nullcontext()
    with of_code(spec.model), explained(name, partial(_hint, factory, device)), torch.device(device), where:
        made = binding.call(spec.model, factory, values, spec.model_args)
    model, make_batch = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ImportProblem(f"{name} made {kind_of(model)}, expected a torch.nn.Module, or that and a batch function")
    if make_batch is not None and not callable(make_batch):
        raise ImportProblem(f"{name} made a model and {kind_of(make_batch)}, expected a function that makes a batch")
    with explained(name):
        settle(model, device, dtype)
        model.train(spec.pass_ != "inference")  # in which dropout does nothing
    batch = None if make_batch is None else _batch(make_batch, spec, values, device, rank)
    return ImportedModel(model, batch, binding.dims_not_taken(factory, values, spec.model_args))


class _OnMeta(TorchFunctionMode):
    """Leaves meta tensors, which hold no data to copy, where they are when a model moves itself to a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.cuda and args[0].is_meta:
            return args[0]
        if func is Tensor.to and args[0].is_meta and not (len(args) > 1 and isinstance(args[1], Tensor)):
            _device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
            return args[0] if dtype is None else args[0].to(dtype)
        return func(*args, **kwargs)


def settle(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move parameters and buffers to the device and convert floating-point ones to `dtype` unless that is float32."""
    held = [*model.parameters(), *model.buffers()]
    if any(not _is_on(tensor, device) for tensor in held):
        model.to(device)
    if dtype != torch.float32:  # `Module.to` would convert complex numbers too
        model._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _is_on(tensor: Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and (tensor.device.index or 0) == (device.index or 0)


def _batch(
    function: Callable[..., Any], spec: CellSpec, values: dict[str, object], device: torch.device, rank: int
) -> Batch | None:
    """The batch of the user's function, by a seed of each rank's own; None if it fails on the meta device."""
    what = f"batch function {getattr(function, '__name__', type(function).__name__)}"
    torch.manual_seed(spec.seed + rank)
    values = values | {"seed": spec.seed + rank}
    try:
        with explained(what), torch.device(device):
            made = binding.call(what, function, values)
    except ImportProblem:
        if device.type == "meta":
            return None
        raise
    if not (isinstance(made, tuple | list) and len(made) == 2 and all(isinstance(part, Tensor) for part in made)):
        raise ImportProblem(f"{what} made {kind_of(made)}, expected two tensors: inputs and targets")
    expected = (spec.rank_batch_size, spec.context_length)
    for part, tensor in zip(("inputs", "targets"), made, strict=True):
        if (shape := tuple(tensor.shape)) != expected:
            raise ImportProblem(f"{what} made {part} of shape {shape}, expected {expected}: batch, context length")
    return Batch(*(tensor if _is_on(tensor, device) else tensor.to(device) for tensor in made))


def _hint(factory: Callable[..., Any], device: torch.device, error: BaseException) -> str:
    said = message_of(error)
    if device.type != "cuda" and ("CUDA" in said or "NVIDIA driver" in said):
        return f"; it asks for CUDA itself, though this cell runs on {device}: let it take device as an argument"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in (binding.parameters_of(factory) or {}).values())
    if isinstance(error, TypeError) and "missing" in said and takes_any:
        return "; arguments passed on by ** cannot be seen: let it name the dimensions that it wants"
    return ""


_FLAGS = ("is_causal", "causal")
_MASKS = ("mask", "attn_mask")


def imported_attention(
    name: str, paths: tuple[str, ...], *, causal: bool, length: int, device: torch.device, given: Pairs = ()
) -> ImportedAttention:
    """The named function, or the `apply` of a named `torch.autograd.Function`, for up to `length` tokens, with the
    arguments that are `given`. It is made causal by a flag ``is_causal`` or ``causal``, or by a boolean ``mask`` or
    ``attn_mask``, (T, T), True where a query may look. Raises `ImportProblem` if it needs one and has none, or needs
    other arguments."""
    function, parameters = _function(name, find(name, paths))
    by_name = {p.name: p for p in parameters[3:]}
    flag = next((by_name[word] for word in _FLAGS if word in by_name), None)
    mask = next((by_name[word] for word in _MASKS if word in by_name), None)
    if len(parameters) < 3:
        raise ImportProblem(f"{signature_text(name, parameters)} does not take queries, keys and values")
    if causal and flag is None and mask is None:
        raise ImportProblem(
            f"{signature_text(name, parameters)} cannot be told to be causal; it needs an argument "
            f"{', '.join(_FLAGS)}, {' or '.join(_MASKS)}"
        )
    if flag is None and mask is not None and not causal and mask.default is not mask.empty:
        mask = None  # it is not causal by itself
    chosen = flag or mask
    free = [word for word, p in by_name.items() if word not in (*_FLAGS, *_MASKS) and p.kind not in _STARS]
    values = binding.values_given("--attention-arg", name, {p.name: p for p in parameters}, free, given)
    taken = {*values, *([chosen.name] if chosen else [])}
    if asked := [word for word in binding.required(by_name) if word not in taken]:
        raise binding.no_default(name, parameters, asked[0])
    masked = flag is None and mask is not None
    table = torch.ones(length, length, dtype=torch.bool, device=device) if masked else None
    if table is not None and causal:
        table.tril_()
    return ImportedAttention(function, _call(parameters, chosen, values), causal, table)


@dataclass(eq=False)
class ImportedAttention:
    """A user's attention. Its mask, if any, serves every layer and step."""

    function: Callable[..., Any]
    arguments: _Arguments
    causal: bool
    mask: Tensor | None  # (T, T), True where a query may look; None for a function with a flag

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[-2]
        cut = self.mask if self.mask is None or self.mask.shape[0] == length else self.mask[:length, :length]
        positional, named = self.arguments(self.causal if cut is None else cut)
        return self.function(q, k, v, *positional, **named)


_Arguments = Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]  # From what says how to look to arguments
_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _function(name: str, found: Any) -> tuple[Callable[..., Any], list[inspect.Parameter]]:
    """The callable and its parameters; those of an autograd function are positional."""
    owner: Any = getattr(found, "__self__", found)
    is_autograd_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
    if is_autograd_function:
        parameters = list((binding.parameters_of(owner.forward) or {}).values())
        if owner.setup_context is torch.autograd.Function.setup_context:
            parameters = parameters[1:]  # ctx
        return owner.apply, [p.replace(kind=p.POSITIONAL_ONLY) if p.kind not in _STARS else p for p in parameters]
    if isinstance(found, type) or not callable(found):
        raise ImportProblem(f"{name} is not a function, nor a torch.autograd.Function")
    wanted = binding.parameters_of(found)
    if wanted is None:
        raise ImportProblem(f"{name} does not show which arguments it takes; wrap it in a function that does")
    return found, list(wanted.values())


def _call(parameters: list[inspect.Parameter], chosen: inspect.Parameter | None, values: dict[str, Any]) -> _Arguments:
    """The arguments of each call: the `values`, and the `chosen` one; by place where they have no name."""
    taken = {*values, *([chosen.name] if chosen else [])}
    by_place = [p for p in parameters[3:] if p.kind is p.POSITIONAL_ONLY]
    count = max((number for number, p in enumerate(by_place, 1) if p.name in taken), default=0)
    named = taken - {p.name for p in by_place}

    def arguments(said: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = values if chosen is None else {**values, chosen.name: said}
        return tuple(given.get(p.name, p.default) for p in by_place[:count]), {word: given[word] for word in named}

    return arguments


def imported_norm(name: str, paths: tuple[str, ...], rows: Tensor) -> NormFunction:
    """The named function of rows and weights, or the `apply` of a named `torch.autograd.Function`; tried on these rows,
    (..., D). Raises `ImportProblem` if it needs other arguments, its own error, and ValueError for an output of
    another shape."""
    function, parameters = _function(name, find(name, paths))
    if len([p for p in parameters if p.kind is not p.KEYWORD_ONLY]) < 2 and not any(
        p.kind in _STARS for p in parameters
    ):
        raise ImportProblem(f"{signature_text(name, parameters)} does not take rows and weights")
    if asked := binding.required({p.name: p for p in parameters[2:]}):
        raise binding.no_default(name, parameters, asked[0])
    with torch.no_grad():
        out = function(rows, rows[(0,) * (rows.dim() - 1)])
    if not isinstance(out, Tensor) or out.shape != rows.shape:
        was = tuple(out.shape) if isinstance(out, Tensor) else kind_of(out)
        raise ValueError(f"norm {name}: returned {was} for rows of {tuple(rows.shape)}; expected {tuple(rows.shape)}")
    return function


_LEARNING_RATE = 1e-3  # For an optimizer that has no default: that of torch's AdamW
_OPTIMIZER_CLASSES = ("optimizer_cls", "optimizer_class")
_TRIED = (2, 3, 5)  # B, T and V of the logits with which a loss is tried, all different


def imported_loss(name: str, paths: tuple[str, ...]) -> Loss:
    """The named function, or an instance of the named class, called with (B, T, V) or flat (B T, V) logits. A trial
    shows which: on the CPU, or on CUDA if initialised and only that works. Raises `ImportProblem` if neither works."""
    found = find(name, paths)
    if isinstance(found, type):
        wanted = binding.parameters_of(found) or {}
        if needed := binding.required(wanted):
            kinds = "a function of logits and targets, or a class made without arguments whose objects are one"
            raise binding.no_default(name, wanted.values(), needed[0], f"; a loss is {kinds}")
        with explained(short(name)):
            found = found()
    if not callable(found):
        raise ImportProblem(f"{name} is {kind_of(found)}, expected a function of logits and targets")
    loss: Loss = found

    def of_flat(logits: Tensor, targets: Tensor) -> Tensor:
        return loss(logits.flatten(0, 1), targets.flatten())

    with nothing_compiled():
        return update_wrapper(of_flat, loss, (), ()) if _wants_flat(name, loss) else loss


def _wants_flat(name: str, loss: Loss) -> bool:
    problem: ImportProblem | None = None
    for device in ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",):
        batch, length, vocabulary = _TRIED
        steps = torch.arange(batch * length * vocabulary, dtype=torch.float32, device=device)
        logits, targets = steps.sin().reshape(_TRIED), torch.arange(batch * length, device=device) % vocabulary
        whole, problem_of_whole = _tried(name, loss, logits, targets.reshape(batch, length))
        flat, problem_of_flat = _tried(name, loss, logits.flatten(0, 1), targets)
        if whole is not None and flat is not None:
            # If both work, take the one that equals cross-entropy; a mean over all tokens equals both.
            right = F.cross_entropy(logits.flatten(0, 1), targets).item()
            return abs(flat - right) < 1e-4 < abs(whole - right)
        if whole is not None or flat is not None:
            return whole is None
        problem = problem or problem_of_flat or problem_of_whole
    assert problem is not None
    raise problem


def _tried(name: str, loss: Loss, logits: Tensor, targets: Tensor) -> tuple[float, None] | tuple[None, ImportProblem]:
    """The loss, or the reason for which there is none."""
    try:
        with torch.no_grad():
            found: Any = loss(logits, targets)
    except BaseException as error:
        raise_interrupt(error)
        problem = ImportProblem(f"loss {short(name)}: {in_one_line(error)}")
        problem.__cause__ = error
        return None, problem
    if not isinstance(found, Tensor):
        return None, ImportProblem(f"loss {short(name)} returned {kind_of(found)}, expected a tensor")
    if found.numel() != 1:
        return None, ImportProblem(f"loss {short(name)} returned shape {tuple(found.shape)}, expected one number")
    return float(found), None


def imported_optimizer(
    name: str, paths: tuple[str, ...], parameters: Iterable[nn.Parameter], given: Pairs = ()
) -> torch.optim.Optimizer:
    """The named class or function's optimizer over these parameters, with the arguments that are `given`, else its
    defaults and a learning rate of 1e-3 if that has none. One that asks for the class of the optimizer which it shards
    is given AdamW. Raises `ImportProblem` if it needs more, or is no optimizer."""
    found = find(name, paths)
    if not callable(found):
        raise ImportProblem(f"{name} is {kind_of(found)}, expected a class of torch.optim.Optimizer")
    wanted = binding.parameters_of(found) or {}
    needed = binding.required(wanted)
    classes = [argument for argument in needed[1:2] if argument in _OPTIMIZER_CLASSES]
    values = binding.values_given("--optimizer-arg", name, wanted, [*wanted][1:], given)
    others = [argument for argument in needed[1:] if argument not in ("lr", *classes, *values)]
    if others:
        remedy = f"; give it with --optimizer-arg {others[0]}=VALUE"
        raise binding.no_default(name, wanted.values(), others[0], remedy)
    options: dict[str, Any] = {"lr": _LEARNING_RATE} if "lr" in needed else {}
    options |= dict.fromkeys(classes, torch.optim.AdamW) | values
    of_ranks = "; it is for several ranks: give --ranks 2 or more, or another optimizer"
    with explained(short(name), lambda error: of_ranks if "process group" in message_of(error) else ""):
        optimizer = found(list(parameters), **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ImportProblem(f"{name} made {kind_of(optimizer)}, expected a torch.optim.Optimizer")
    return optimizer
