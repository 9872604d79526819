"""The reference of a cell's results: the same weights and tokens through naive attention, a norm and a loss of ours, or
through another model of the user's, sequence by sequence."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from cs336_tui.worker.workload.passes import cross_entropy, logits_of
from cs336_tui.worker.workload.precision import RECIPES
from cs336_tui.worker.workload.transformer import Batch, Loss, Rotary, causal_mask

_ROOM = 0.5
"""Share of the free memory that the reference may take, by an estimate of the most that it needs."""

EXACT, DEPARTS = 1e-5, 0.5
"""Relative differences of a loss from cross-entropy: up to the first it is cross-entropy, from the second on it is
another loss, or leaves something out."""
_ROUNDED = 3e-4
"""Rounding of a token's gradient in float32, of which sums over a vocabulary are a part; bfloat16's is 1e-3."""
_LEAST = 0.3
"""Least size of a token's gradient, 1 less its target's probability, to which differences are relative: smoothing is
more than the gradient of a target that is surely expected."""


class Unchecked(Exception):
    """The results cannot be compared; says why in a few words."""


class Referred(NamedTuple):
    """The results of a reference: logits, some sequences each, the loss, whole gradients by parameter (none without a
    backward), seconds; of a copy of the cell's model that ran on all at once the FLOPs of its forward and backward; the
    words on what is the cell's own and is not compared."""

    logits: list[Tensor]
    loss: Tensor | None
    gradients: dict[str, Tensor]
    took_s: float
    flops: tuple[int, int] | None
    left_out: str


class Reference:
    """Made by `reference_of`. It shares the cell's weights, whatever they are when it runs."""

    def __init__(
        self, spec: CellSpec, workload: Workload, model: nn.Module, loss: Loss, words: str, at_once: int, own_loss: bool
    ) -> None:
        self.spec, self.words, self._at_once = spec, words, at_once
        self._workload, self._model, self._loss, self._own_loss = workload, model, loss, own_loss
        self._alone, self._is_copy = isinstance(model, OperationAlone), type(model) is type(workload.model)

    def run(self, batch: Batch, *, backward: bool, within_s: float) -> Referred:
        """The results on a batch, some sequences at once; logits, and with `backward` gradients. Raises
        `Unchecked` after `within_s`."""
        trained = {name: parameter for name, parameter in self._load().items() if parameter.requires_grad}
        self._model.train(self._workload.model.training)
        parts = [batch] if self._alone else [*map(Batch, *(tensor.split(self._at_once) for tensor in batch))]
        training = self._workload.training
        scale = float(training.scaler.get_scale()) if training and training.scales_gradients else 1.0
        logits, gradients, loss, left_out = [], dict[str, Tensor](), None, ""
        counter = ProductCounter(self.spec.vocab_size) if self._is_copy and len(parts) == 1 else None
        began = perf_counter()
        for number, part in enumerate(parts):
            share = 1.0 if self._alone else len(part.inputs) / len(batch.inputs)
            with torch.set_grad_enabled(backward), self._workload.autocast(), counter or nullcontext():
                out = logits_of(self._model(part.inputs), self._model)
                part_loss = self._loss(out, part.targets) if "loss" in prepared_phases(self.spec.pass_) else None
                if part_loss is not None and self._own_loss:
                    departs, own_loss = departure(self._workload.loss, out, part.targets)
                    if EXACT < departs < DEPARTS:
                        part_loss, left_out = own_loss, "its loss with cross-entropy"
            logits.append(out.detach())
            if part_loss is not None:
                loss = (0.0 if loss is None else loss) + part_loss.detach().float() * share
            if backward and part_loss is not None:
                with counter or nullcontext():
                    found = torch.autograd.grad(part_loss * (share * scale), [*trained.values()], allow_unused=True)
                for name, gradient in zip(trained, found, strict=True):
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
        return Referred(logits, loss, gradients, perf_counter() - began, flops, left_out)

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


def departure(loss: Loss, logits: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """The largest relative difference of a loss from cross-entropy: of its value, and of each token's gradient of the
    target and of the other words. Infinite if the latter is not what weights of tokens, smoothed targets and a z-loss
    come to: the words' probabilities times a number, and a number. Beside it the loss with the gradient that was
    compared, as a loss may compute another one when it is called again."""
    own = logits.detach().float().requires_grad_()  # which a backward of its own does not leave
    with torch.enable_grad():
        value = loss(own, targets)
        gradient = torch.autograd.grad(value, own, allow_unused=True)[0] if value.requires_grad else None
    if gradient is None:
        return math.inf, value
    with torch.no_grad():
        apart = [float((value / cross_entropy(own, targets) - 1).abs())]
        for rows in zip(gradient, own, targets, strict=True):  # sequence by sequence: each needs several of its size
            apart.append(_tokens_departure(*rows, tokens=targets.numel()))
    return max(apart), value.detach() + ((logits - logits.detach()) * gradient).sum()


def _tokens_departure(gradient: Tensor, logits: Tensor, targets: Tensor, tokens: int) -> float:
    """The same of a sequence's gradient, (T, V), of a mean over so many tokens."""
    target, expected = targets.unsqueeze(-1), logits.softmax(-1)
    size = 1 - expected.gather(-1, target)
    of_target = ((gradient.gather(-1, target) * tokens + size) / size.clamp_min(_LEAST)).abs()
    is_other = torch.ones_like(expected).scatter_(-1, target, 0.0)
    expected *= is_other
    found = gradient * tokens * is_other
    line, steep = (each - is_other * each.sum(-1, keepdim=True) / (each.shape[-1] - 1) for each in (found, expected))
    slope = (line * steep).sum(-1, keepdim=True) / steep.square().sum(-1, keepdim=True).clamp_min(1e-30)
    if ((line - slope * steep).norm(dim=-1) > _ROUNDED * found.norm(dim=-1)).any():
        return math.inf
    least = _LEAST / math.sqrt(logits.shape[-1])
    of_others = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(least)
    return float(torch.maximum(of_target.squeeze(-1), of_others).nan_to_num(math.inf, math.inf).max())


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
    if place.type == "meta":
        _fill_tables(model, spec, device)
    words = "naive attention" if spec.workload == "attention" or is_imported(spec.attention) else "the reference model"
    if own:
        words = "the reference model" if other == REFERENCE else short(other) if other else "a fresh copy of itself"
    elif is_imported(spec.norm) or spec.workload == "norm":
        words = plain.norm
    return Reference(plain, workload, model, made.loss, words, at_once, is_imported(spec.loss))


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


def _fill_tables(model: nn.Module, spec: CellSpec, device: torch.device) -> None:
    """Make the tables of a model that was built without data."""
    length, rotary = spec.context_length, None
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, Rotary):
                rotary = rotary or Rotary(spec.d_model // spec.num_heads, length, device=device)
                setattr(module, name, rotary)
    for name in ("causal_mask", "mask"):  # of a whole model, and of attention alone
        if getattr(model, name, None) is not None:
            setattr(model, name, causal_mask(length, device=device, dtype=RECIPES[spec.precision].parameters))
