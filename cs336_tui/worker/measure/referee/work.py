"""Counts the matrix products of a step as they are dispatched, by part of the model and by dtype, and the least that
its dimensions ask for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cs336_tui.config.flops import parameters, step_flops, surely_moved
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.config.variants import IN_MODEL, is_imported
from cs336_tui.events.audit import FASTER, Speed, Work
from cs336_tui.events.gpus import gpu_of_label
from cs336_tui.worker.measure.probe import device_label
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.precision import RECIPES, dtype_name
from cs336_tui.worker.workload.transformer import Batch

_CONVOLUTIONS = ("convolution", "convolution_backward")
_WITH_WEIGHTS = ("mm", "addmm", "_scaled_mm", *_CONVOLUTIONS)
_PRODUCTS = ("mm", "addmm", "_scaled_mm", "bmm", "baddbmm")
_UNSEEN = (
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
    "mkldnn_rnn_layer",
    "_cudnn_rnn",
    "_grouped_mm",
)
"""Kernels of several products."""
_TORCH = ("aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "fsdp")
_LEAST, _MOST = 256, 4096
"""Sizes of the matrix product whose speed is taken: square, and of about a twelfth of a step's FLOPs."""
_LEAST_S = 0.1
"""A product or copy that is too slow is repeated for so long, as threads may wake up late."""
_LARGE = 2**28
"""Bytes of which a cache keeps little."""


class ProductCounter(TorchDispatchMode):
    """FLOPs of the products that run within it, by direction, part and dtype."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self.forward, self.backward = Counter[str](), 0
        self.dtypes = Counter[str]()
        self.uncounted = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        factors = [each for each in args if isinstance(each, Tensor) and each.dim() > 1]
        flops = _product_flops(name, [each.shape for each in factors])
        if not flops and func.namespace == "aten":
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        out = func(*args, **kwargs)
        if not flops:
            if func.namespace not in _TORCH or name in _UNSEEN:
                self.uncounted[str(func.overloadpacket)] += 1
            return out
        self.dtypes[dtype_name(factors[0].dtype)] += flops  # the last may be sums in float32
        if torch._C._current_autograd_node() is not None:
            self.backward += flops
            return out
        part = "attention"
        if name in _WITH_WEIGHTS:
            part = "head" if any(self._vocab_size in each.shape for each in factors) else "blocks"
        self.forward[part] += flops
        return out


def _product_flops(name: str, factors: list[torch.Size]) -> int:
    """FLOPs of an operation by the shapes of its tensors of two dimensions and more, 2 m n k a product; 0 of one that
    multiplies no matrices. Of a fused kernel of attention two products, in its backward five, masked scores too, as
    `torch.utils.flop_counter` counts them."""
    if name in _PRODUCTS and len(factors) >= 2:
        left, right = factors[:2] if name == "_scaled_mm" else factors[-2:]
        return 2 * math.prod(left) * right[-1]
    if name in _CONVOLUTIONS and len(factors) >= 2:
        rows = math.prod(factors[0]) // factors[0][1]
        return 2 * rows * math.prod(factors[-1]) * (2 if name == "convolution_backward" else 1)
    if "attention" in name and name not in _UNSEEN and len(factors) >= 3:
        is_backward = "backward" in name
        query, key, value = factors[1:4] if is_backward else factors[:3]
        pairs = math.prod(query[:-1]) * key[-2]
        one = 2 * pairs * query[-1]
        return 3 * one + 2 * 2 * pairs * value[-1] if is_backward else one + 2 * pairs * value[-1]
    return 0


def count_work(spec: CellSpec, workload: Workload, batch_flops: tuple[int, int] | None) -> Work | None:
    """The work of a step on one sequence, without its optimizer, of the model as it is written; on the timed batch if
    it cannot run on one. None where it cannot run. `batch_flops` are those of a forward and a backward on the timed
    batch, if they are known."""
    every = spec.rank_batch_size
    for sequences in (every,) if spec.is_alone else (1, every):
        counted = _counted(spec, workload, sequences)
        if counted and counted[0].forward:
            break
    else:
        return None
    counter, own = counted
    least = _least_forward(spec, workload, sequences)
    if (own or is_imported(spec.attention)) and not counter.forward["attention"]:
        least.pop("attention", None)  # its products may be in a kernel that is not dispatched
    done, asked = dict(counter.forward), sum(least.values())
    beyond = done.get("attention", 0) - 2 * least.get("attention", 0)
    if "attention" in least and beyond > 0:  # of experts in one batched product, as attention's own come to twice that
        done["blocks"], done["attention"] = done.get("blocks", 0) + beyond, done["attention"] - beyond
    if not _tells_head(spec, done):
        for parts in (done, least):
            parts["matrices"] = parts.pop("head", 0) + parts.pop("blocks", 0)
    forward = sum(counter.forward.values())
    if batch_flops is not None and sequences < every:
        # Of the reference model the reference's attention may multiply less, and it recomputes nothing.
        alike = is_imported(spec.model) and not spec.checkpoint
        done["batch"] = batch_flops[0] + alike * batch_flops[1]
        least["batch"] = (forward + alike * counter.backward) * every
    trained = all(parameter.requires_grad for parameter in workload.model.parameters())
    backward = spec.pass_ not in WITHOUT_BACKWARD and trained
    # Functions of the user's own may have a kernel for the backward of attention, and compute gradients early.
    least_backward = 3 * asked - 2 * least.get("attention", 0) - forward if own else 2 * forward
    return Work(
        forward=forward,
        backward=counter.backward,
        least_forward=asked,
        least_backward=max(least_backward, 0) if backward else 0,
        parts={name: (done.get(name, 0), least[name]) for name in least if least[name]},
        dtypes=dict(counter.dtypes),
        uncounted=(*(own if forward < asked else ()), *counter.uncounted),
    )


def _counted(spec: CellSpec, workload: Workload, sequences: int) -> tuple[ProductCounter, tuple[str, ...]] | None:
    """The products of a step on so many sequences, and the user's own functions in it; None where it cannot run."""
    pass_ = spec.pass_ if spec.pass_ in WITHOUT_BACKWARD else "forward+backward"
    batch = workload.batch if spec.is_alone else Batch(*(part[:sequences].clone() for part in workload.batch))
    in_model = spec.loss == IN_MODEL
    written = Step(pass_, workload.model, batch, workload.autocast, loss=workload.loss, loss_in_model=in_model)
    counter = ProductCounter(spec.vocab_size if not spec.is_alone else -1)
    kept = [parameter.grad for parameter in workload.model.parameters()]
    try:
        nn.Module.zero_grad(workload.model, set_to_none=True)
        with counter:
            for phase in written.phases:
                written.run(phase)
        results = written.results
        return counter, _own_functions(results.logits if results.loss is None else results.loss)
    except Exception:  # such as a model of a fixed batch
        return None
    finally:
        written.clear()
        for parameter, gradient in zip(workload.model.parameters(), kept, strict=True):
            parameter.grad = gradient


def _tells_head(spec: CellSpec, forward: dict[str, int]) -> bool:
    """True if products with the vocabulary's size are the head's alone; not of a vocabulary that the model pads, nor of
    one that is as large as another dimension."""
    widths = (spec.d_model, spec.d_ff)
    others = {times * width for width in widths for times in (1, 2, 3)} | {spec.context_length, spec.head_dim}
    return bool(forward.get("head")) and spec.vocab_size not in others


def _own_functions(output: Tensor | None) -> tuple[str, ...]:
    """Names of a user's autograd functions in the graph of an output."""
    waiting, seen, found = [output.grad_fn if output is not None else None], set[Any](), dict[str, None]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found[type(node).__name__.removesuffix("Backward")] = None
        waiting += [after for after, _ in node.next_functions]
    return tuple(name for name in found if name not in ("_Begin", "CheckpointFunction"))


def _least_forward(spec: CellSpec, workload: Workload, sequences: int) -> dict[str, int]:
    """FLOPs of a forward on so many sequences, by part: of the reference model all, of a user's the least of models
    with these dimensions, two matrices in a feed-forward network and shared keys and values. Of attention, which a user
    may compute in any way, the pairs that a causal mask leaves."""
    if spec.workload == "norm":
        return {}
    tokens, length = sequences * spec.context_length, spec.context_length
    pairs = length * (length + 1) // 2 if spec.causal else length**2
    layers = 1 if spec.workload == "attention" else spec.num_layers
    attention = {"attention": 4 * sequences * pairs * spec.d_model * layers}
    if spec.workload == "attention":
        return attention
    head = spec.vocab_size * spec.d_model
    factors = parameters(spec).factors
    if is_imported(spec.model):
        if workload.facts.dims_not_taken:
            return {}
        factors = head + layers * (2 * spec.d_model**2 + 2 * spec.d_model * spec.d_ff)
    return {"head": 2 * tokens * head, "blocks": 2 * tokens * (factors - head), **attention}


def device_speed(
    spec: CellSpec, device: torch.device, step_s: float, reference_s: float | None, synchronize: Callable[[], object]
) -> Speed:
    """The device's rates, as far as it takes to show that a step can be as fast as it was: nothing of one that is no
    faster than the reference or has a data sheet's peaks above it."""
    recipe, gpu = RECIPES[spec.precision], gpu_of_label(device_label(device)) if device.type == "cuda" else None
    flops, moved = step_flops(spec, all_pairs=False), surely_moved(spec)
    speed = Speed(
        reference_s=reference_s,
        sheet_flops_per_s=gpu.peak_flops(spec.precision) if gpu else None,
        sheet_bytes_per_s=gpu.bandwidth_bytes_per_s if gpu and moved > _LARGE else None,
    )
    if reference_s and reference_s < FASTER * step_s:
        return speed
    dtype = recipe.autocast or recipe.parameters
    on_cuda = device.type == "cuda"  # where a small product or copy is all launch
    size = _MOST if on_cuda else min(max(round((flops / 24) ** (1 / 3)), _LEAST), _MOST)
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))

    def best(work: int, run: Callable[[], object], enough: float) -> float:
        """The rate of the fastest run: as many as reach `enough`, or last `_LEAST_S`."""
        rate, until = 0.0, perf_counter() + _LEAST_S
        while not rate or (FASTER * rate < enough and perf_counter() < until):
            began = perf_counter()
            run()
            synchronize()
            rate = max(rate, work / (perf_counter() - began))
        return rate

    with torch.no_grad():
        if flops and not recipe.float8 and speed.sheet_flops_per_s is None:
            rate = best(2 * size**3, lambda: torch.mm(left, right), flops / step_s)
            speed = msgspec.structs.replace(speed, flops_per_s=rate)
        if moved and speed.sheet_bytes_per_s is None and (moved > _LARGE or not on_cuda):
            one = torch.ones(min(max(moved, _LEAST), _LARGE) // 8, device=device)  # of 4 bytes, read and written
            rate = best(8 * len(one), one.clone, moved / step_s)
            speed = msgspec.structs.replace(speed, bytes_per_s=rate)
    return speed
