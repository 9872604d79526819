"""The reference of a cell's results: the same weights and tokens through naive attention, a norm and a loss of ours, or
through another model of the user's, sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import perf_counter
from typing import NamedTuple

import msgspec
import psutil
import torch
from torch import Tensor, nn

from cs336_tui.config.order import rough_peak_bytes
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD, prepared_phases
from cs336_tui.config.variants import CROSS_ENTROPY, IN_MODEL, REFERENCE, is_imported, short
from cs336_tui.worker.measure.referee.work import ProductCounter
from cs336_tui.worker.workload.building import Workload, build, collect_garbage
from cs336_tui.worker.workload.model_parts import named_parameters
from cs336_tui.worker.workload.norms import OperationAlone
from cs336_tui.worker.workload.passes import logits_of
from cs336_tui.worker.workload.precision import RECIPES
from cs336_tui.worker.workload.transformer import Batch, Loss, Rotary, Transformer, causal_mask

_ROOM = 0.5
"""Share of the free memory that the reference may take, by an estimate of the most that it needs."""


class Unchecked(Exception):
    """The results cannot be compared; says why in a few words."""


class Referred(NamedTuple):
    """The results of a reference: logits, some sequences each, the loss, whole gradients by parameter (none without a
    backward), seconds; of a copy of the cell's model that ran on all at once the FLOPs of its forward and backward."""

    logits: list[Tensor]
    loss: Tensor | None
    gradients: dict[str, Tensor]
    took_s: float
    flops: tuple[int, int] | None


class Reference:
    """Made by `reference_of`. It shares the cell's weights, whatever they are when it runs."""

    def __init__(
        self, spec: CellSpec, workload: Workload, model: nn.Module, loss: Loss, words: str, at_once: int
    ) -> None:
        self.spec, self.words, self._at_once = spec, words, at_once
        self._workload, self._model, self._loss = workload, model, loss
        self._alone, self._is_copy = isinstance(model, OperationAlone), type(model) is type(workload.model)

    def run(self, batch: Batch, *, backward: bool, within_s: float) -> Referred:
        """The results on a batch, some sequences at once; logits, and with `backward` gradients. Raises
        `Unchecked` after `within_s`."""
        parameters = self._load()
        self._model.train(self._workload.model.training)
        parts = [batch] if self._alone else list(_parts(batch, self._at_once))
        training = self._workload.training
        scale = float(training.scaler.get_scale()) if training and training.scales_gradients else 1.0
        logits, gradients, loss = [], dict[str, Tensor](), None
        counter = ProductCounter(self.spec.vocab_size) if self._is_copy and len(parts) == 1 else None
        began = perf_counter()
        for number, part in enumerate(parts):
            share = 1.0 if self._alone else len(part.inputs) / len(batch.inputs)
            with torch.set_grad_enabled(backward), self._workload.autocast(), counter or nullcontext():
                out = logits_of(self._model(part.inputs), self._model)
                part_loss = self._loss(out, part.targets) if "loss" in prepared_phases(self.spec.pass_) else None
            logits.append(out.detach())
            if part_loss is not None:
                loss = (0.0 if loss is None else loss) + part_loss.detach().float() * share
            if backward and part_loss is not None:
                wanted = [parameter for parameter in parameters.values() if parameter.requires_grad]
                with counter or nullcontext():
                    found = torch.autograd.grad(part_loss * (share * scale), wanted, allow_unused=True)
                names = [name for name, parameter in parameters.items() if parameter.requires_grad]
                for name, gradient in zip(names, found, strict=True):
                    if gradient is not None:
                        exact = gradient.float().contiguous() / scale  # as collectives want it
                        if scale > 1 and not bool(exact.isfinite().all()):
                            raise Unchecked("the reference's gradients overflow float16")
                        gradients[name] = gradients[name].add_(exact) if name in gradients else exact
            if loss is not None and not bool(torch.as_tensor(loss).isfinite()):  # which waits for the device
                raise Unchecked("its loss is not finite")
            if number + 1 < len(parts) and perf_counter() - began > within_s:
                raise Unchecked("the reference would take longer than three steps")
        flops = (sum(counter.forward.values()), counter.backward) if counter else None
        return Referred(logits, loss, gradients, perf_counter() - began, flops)

    @torch.no_grad()
    def _load(self) -> dict[str, nn.Parameter]:
        """Give the reference the cell's weights, in the same memory unless ranks shard them: its parameters by name."""
        own = {name: whole(parameter.detach()) for name, parameter in named_parameters(self._workload.model)}
        found = dict(named_parameters(self._model))
        if own.keys() != found.keys():
            other = min(own.keys() ^ found.keys())
            raise Unchecked(f"the reference has other parameters: {other}")
        for name, parameter in found.items():
            if parameter.shape != own[name].shape:
                raise Unchecked(f"{name} has shape {tuple(own[name].shape)}, in the reference {tuple(parameter.shape)}")
            if parameter.is_meta:
                _put(self._model, name, nn.Parameter(own[name]))
            else:
                parameter.data = own[name]
        # A copy of the cell's model has its tables, too; those of another model are part of what it computes.
        buffers = dict(self._workload.model.named_buffers()) if self._is_copy else {}
        for name, buffer in self._model.named_buffers():
            if name in buffers and buffers[name].shape == buffer.shape and not buffer.is_meta:
                buffer.copy_(buffers[name])
        return dict(named_parameters(self._model))


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that ranks may shard; each of them calls it."""
    full: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)  # a DTensor, whose import takes a second
    return tensor if full is None else full()


def _put(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Set a parameter, wherever the model has the one of this name."""
    old = dict(named_parameters(model))[name]
    for module in model.modules():
        for key, held in module._parameters.items():
            if held is old:
                module._parameters[key] = parameter


def _parts(batch: Batch, at_once: int) -> Iterator[Batch]:
    for parts in zip(*(tensor.split(at_once) for tensor in batch), strict=True):
        yield Batch(*parts)


def reference_of(spec: CellSpec, workload: Workload, device: torch.device) -> Reference:
    """The reference of a cell: of the reference model with naive attention, of a user's own the model that `check`
    names, or without one a fresh copy of itself. Raises `Unchecked` without one, or if it has no room."""
    plain = msgspec.structs.replace(
        spec,
        attention="naive",
        norm="rmsnorm" if is_imported(spec.norm) else spec.norm,
        loss=CROSS_ENTROPY,
        optimizer="adamw",
        compile="off",
        checkpoint=0,
        nesting="off",
        cuda_graph="off",
        timer="step",
        flush_l2=False,
        dropout=0.0,
        attention_dropout=0.0,
        accumulate=1,
        parallel="none",
        ranks=1,
        backend="auto",
        batch_is="per-rank",
        batch_size=spec.rank_batch_size,
        pass_=spec.pass_ if spec.pass_ in WITHOUT_BACKWARD else "forward+backward",
    )
    own, other = is_imported(spec.model), spec.checked_by or (REFERENCE if spec.loss == IN_MODEL else "")
    if own:
        plain = msgspec.structs.replace(plain, model=other or spec.model, attention=spec.attention)
    at_once = _sequences_at_once(plain, device, surely=device.type == "cpu" or spec.ranks > 1)
    place = device if own else torch.device("meta")
    try:
        made = build(plain, place, as_written=True)
    except Exception as error:
        raise Unchecked(f"the reference could not be built: {str(error).splitlines()[0]}") from error
    model = made.model
    if isinstance(model, Transformer):
        _fill_tables(model, spec, device)
    elif not own:
        _fill_alone(model, spec, device)
    words = "naive attention" if spec.workload == "attention" or is_imported(spec.attention) else "the reference model"
    if own:
        words = "the reference model" if other == REFERENCE else short(other) if other else "a fresh copy of itself"
    elif is_imported(spec.norm) or spec.workload == "norm":
        words = plain.norm
    return Reference(plain, workload, model, made.loss, words, at_once)


def _sequences_at_once(spec: CellSpec, device: torch.device, *, surely: bool) -> int:
    """As many sequences as surely have room. `surely` raises `Unchecked` where one may have none: where the host's
    memory runs out, the system kills instead of raising, and ranks would wait for one that has failed."""
    collect_garbage()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the peaks are read
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    for count in (spec.batch_size, 1):
        if rough_peak_bytes(msgspec.structs.replace(spec, batch_size=count)) < free * _ROOM:
            return count
    if surely:
        raise Unchecked("the reference may not fit into memory")
    return 1


def _fill_tables(model: Transformer, spec: CellSpec, device: torch.device) -> None:
    """Make the tables of a model that was built without data."""
    length = spec.context_length
    rotary: Rotary | None = None
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, Rotary):
                rotary = rotary or Rotary(spec.d_model // spec.num_heads, length, device=device)
                setattr(module, name, rotary)
    dtype = RECIPES[spec.precision].parameters
    model.causal_mask = causal_mask(length, device=device, dtype=dtype)


def _fill_alone(model: nn.Module, spec: CellSpec, device: torch.device) -> None:
    if getattr(model, "mask", None) is not None:
        model.mask = causal_mask(spec.context_length, device=device, dtype=RECIPES[spec.precision].parameters)
