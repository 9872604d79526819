"""Every choice by its field (`AXES`), and what cells, sweeps and the form refuse of several together (`RULES`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from cs336_tui.config import axes
from cs336_tui.config.axes import Choices
from cs336_tui.config.axis import SpecError, axes_of
from cs336_tui.config.values import BYTES_OF_ELEMENT, CAPTURING, COMPUTING, LANGUAGE_MODEL, message_bytes
from cs336_tui.config.variants import IN_MODEL, is_imported, option_of, short
from cs336_tui.stats.quantities import counted

AXES = axes_of(axes.Choices, vars(axes))
"""Every choice by its field of a cell."""
ARGUMENTS = {field: axis.arguments_of for field, axis in AXES.items() if axis.arguments_of}
"""Choices that are arguments of a user's own code, each with the choice that names the code."""
FLOAT8_MULTIPLE = 16
"""Float8 matrix products of the hardware need dimensions that are multiples of this."""


class Rule(msgspec.Struct, frozen=True):
    """A rule between choices: `refusals` yields what is wrong in a cell and reads these `fields` only. Logs may have
    cells that break a rule with `in_logs`: only sweeps and searches ask it."""

    fields: tuple[str, ...]
    refusals: Callable[[Choices], Iterator[SpecError]]
    in_logs: bool = False


RULES: list[Rule] = []


def _between(*fields: str, in_logs: bool = False) -> Callable[[Callable[[Choices], Iterator[SpecError]]], object]:
    """Register a function as the rule between these choices; every rule may read the workload and dimensions, too."""
    return lambda refusals: RULES.append(Rule(fields, refusals, in_logs))


@_between("arch", "size", "model")
def _heads_that_rotate(cell: Choices) -> Iterator[SpecError]:
    rotates = cell.arch == "swiglu-rope" and cell.workload == LANGUAGE_MODEL and not is_imported(cell.model)
    if rotates and (width := cell.d_model // cell.num_heads) % 2:
        why = f"gives heads of odd width {width}; rotary embeddings need an even width"
        yield SpecError("num_heads", cell.num_heads, why)


@_between("steps_auto", "sync")
def _steps_that_are_looked_at(cell: Choices) -> Iterator[SpecError]:
    if cell.steps_auto is not None and cell.sync != "each-step":
        yield SpecError("sync", cell.sync, "a number of steps that is not fixed needs each-step")


@_between("timer", "sync", "steps_auto", "warmup_auto")
def _timed_as_do_bench(cell: Choices) -> Iterator[SpecError]:
    if cell.timer != "do_bench":
        return
    if cell.sync != "each-step":
        yield SpecError("sync", cell.sync, "timer do_bench synchronises once, at the end; leave it out")
    for field, is_auto in (("warmup_steps", cell.warmup_auto), ("measure_steps", cell.steps_auto is not None)):
        if is_auto:
            yield SpecError(field, "auto", "timer do_bench looks at no step; choose a time such as 100ms, or a number")


@_between("inputs", "sync", "timer")
def _tokens_between_steps(cell: Choices) -> Iterator[SpecError]:
    if cell.inputs == "fresh" and (cell.sync, cell.timer) != ("each-step", "step"):
        yield SpecError("inputs", "fresh", "steps are enqueued back to back; choose --inputs fixed, or leave it out")


@_between("flush_l2", "device")
def _has_an_l2(cell: Choices) -> Iterator[SpecError]:
    if cell.flush_l2 and not cell.device.startswith("cuda"):
        why = f"only cuda tells the size of its L2, and zeroing memory need not pass through {cell.device}'s caches"
        yield SpecError("flush_l2", "yes", f"{why}; leave it out")


@_between("model", "model_args")
def _arguments_not_given_twice(cell: Choices) -> Iterator[SpecError]:
    for argument, text in cell.model_args if is_imported(cell.model) else ():
        if option := option_of(argument):
            why = f"{argument} comes from {option}; leave --model-arg {argument} out"
            yield SpecError("model_args", f"{argument}={text}", why)


@_between("loss", "model", "pass_")
def _loss_in_the_model(cell: Choices) -> Iterator[SpecError]:
    if cell.loss == IN_MODEL and not is_imported(cell.model):
        yield SpecError("loss", cell.loss, "the reference model returns logits; name a model of your own with --model")
    elif cell.loss == IN_MODEL and cell.pass_ in ("inference", "forward"):
        yield SpecError("pass", cell.pass_, "the model's forward computes the loss, too; choose forward+loss")


@_between("checkpoint", "size")
def _groups_of_blocks(cell: Choices) -> Iterator[SpecError]:
    if cell.checkpoint > cell.num_layers:
        allowed = f"expected at most the number of layers, {cell.num_layers}"
        yield SpecError("checkpoint", cell.checkpoint, allowed)


@_between("model", "attention")
def _attention_of_ones_own(cell: Choices) -> Iterator[SpecError]:
    if is_imported(cell.model) and cell.attention != "naive":
        why = f"{short(cell.model)} brings its own attention; leave it out"
        yield SpecError("attention", cell.attention, why)


_OF_OURS = ("norm", "dropout", "attention_dropout", "bias", "weight_tying", "gelu")
"""Options of the reference model."""


def _of_ours_alone(field: str, cell: Choices) -> Iterator[SpecError]:
    if is_imported(cell.model) and (value := getattr(cell, field)) != AXES[field].default:
        yield SpecError(field, value, f"{short(cell.model)} has its own; leave it out, or use --model-arg")


for _field in _OF_OURS:
    _between("model", _field)(partial(_of_ours_alone, _field))


@_between("gelu", "arch", "model")
def _no_gelu(cell: Choices) -> Iterator[SpecError]:
    if cell.gelu != "exact" and cell.arch != "gelu-learned" and not is_imported(cell.model):
        yield SpecError("gelu", cell.gelu, f"arch {cell.arch} has none; choose --arch gelu-learned")


@_between("attention_dropout", "attention", "model")
def _weights_to_drop(cell: Choices) -> Iterator[SpecError]:
    if cell.attention_dropout and cell.attention != "naive" and not is_imported(cell.model):
        why = f"attention {short(cell.attention)} has no weights to drop; choose naive"
        yield SpecError("attention_dropout", cell.attention_dropout, why)


@_between("cuda_graph", "checkpoint", "dropout", "attention_dropout", "size")
def _captured_draws(cell: Choices) -> Iterator[SpecError]:
    if cell.cuda_graph != "off" and cell.checkpoint and (cell.dropout or cell.attention_dropout):
        why = "draws again what it dropped, which cannot be captured; choose 0, or no dropout"
        yield SpecError("checkpoint", cell.checkpoint, why)


@_between("pass_")
def _nothing_to_train(cell: Choices) -> Iterator[SpecError]:
    if cell.workload in COMPUTING and cell.workload != LANGUAGE_MODEL and cell.pass_ == "train-step":
        yield SpecError("pass", cell.pass_, f"{cell.workload} alone has nothing to train; choose another pass")


@_between("size")
def _no_heads(cell: Choices) -> Iterator[SpecError]:
    if cell.workload == "norm" and cell.num_heads > 1:
        yield SpecError("num_heads", cell.num_heads, "a norm has no heads; leave it out")


def _none_alone(field: str, cell: Choices) -> Iterator[SpecError]:
    if not AXES[field].is_in(cell.workload) and (value := getattr(cell, field)) != AXES[field].default:
        yield SpecError(field, value, f"workload {cell.workload} has none; leave it out")


for _field in (
    "model", "attention", "optimizer", "loss", "checkpoint", "nesting", "parallel", "accumulate", "batch_is",
    "collective", *_OF_OURS,
):  # fmt: skip
    _between(_field)(partial(_none_alone, _field))


@_between("size", "ranks", "precision", "pass_", "timer", "sync")
def _message(cell: Choices) -> Iterator[SpecError]:
    if cell.workload != "collective":
        return
    if cell.ranks < 2:
        yield SpecError("ranks", cell.ranks, "a collective is of several; give --ranks 2 or more")
        return
    if cell.precision not in BYTES_OF_ELEMENT:
        yield SpecError("precision", cell.precision, f"a message is {' or '.join(BYTES_OF_ELEMENT)}")
        return
    if cell.pass_ != "forward":
        yield SpecError("pass", cell.pass_, "a collective has none; leave it out")
    for field in ("sync", "timer"):
        if (value := getattr(cell, field)) != AXES[field].default:
            yield SpecError(field, value, "the ranks of a collective begin each step together; leave it out")
    if not message_bytes((cell.d_model, cell.d_ff), cell.precision, cell.ranks):
        yield SpecError(
            "size", cell.size, f"less than one {cell.precision} number for each of {counted(cell.ranks, 'rank')}"
        )


@_between("cuda_graph", "pass_", "precision")
def _captured(cell: Choices) -> Iterator[SpecError]:
    if cell.cuda_graph != "off" and cell.pass_ == "backward":
        yield SpecError("pass", cell.pass_, "cannot be captured without its forward; choose forward+backward")
    if cell.cuda_graph != "off" and cell.pass_ == "train-step" and cell.precision == "fp16-mixed":
        yield SpecError("precision", cell.precision, "its gradient scaler waits for the device: not to be captured")


@_between("cuda_graph", "compile")
def _captured_twice(cell: Choices) -> Iterator[SpecError]:
    if cell.cuda_graph != "off" and cell.compile in CAPTURING:
        yield SpecError("compile", cell.compile, "captures CUDA graphs itself; choose default or off")


@_between("precision", "size", "model")
def _float8(cell: Choices) -> Iterator[SpecError]:
    """Dimensions of linear layers for float8; an imported model's are known when it is built."""
    if cell.precision != "fp8-mixed":
        return
    if cell.workload != LANGUAGE_MODEL:
        yield SpecError("precision", cell.precision, f"{cell.workload} alone has no linear layers; choose bf16-mixed")
        return
    for field in ("d_model", "d_ff") if not is_imported(cell.model) else ():
        if (width := getattr(cell, field)) % FLOAT8_MULTIPLE:
            yield SpecError(field, width, f"precision fp8-mixed needs multiples of {FLOAT8_MULTIPLE}")


@_between("batch_size", "ranks", "batch_is")
def _divided_equally(cell: Choices) -> Iterator[SpecError]:
    if cell.batch_is == "global" and cell.batch_size % cell.ranks:
        why = f"cannot be divided equally by {cell.ranks} ranks; choose a multiple, or --batch-is per-rank"
        yield SpecError("batch_size", cell.batch_size, why)


@_between("accumulate", "pass_")
def _something_to_accumulate(cell: Choices) -> Iterator[SpecError]:
    if cell.accumulate > 1 and cell.pass_ != "train-step":
        yield SpecError("accumulate", cell.accumulate, f"{cell.pass_} has one batch; choose --pass train-step")


@_between("accumulate", "cuda_graph")
def _captured_once(cell: Choices) -> Iterator[SpecError]:
    if cell.accumulate > 1 and cell.cuda_graph != "off":
        yield SpecError("accumulate", cell.accumulate, "a CUDA graph holds one batch; choose --cuda-graph off")


@_between("accumulate", "compile", "device", in_logs=True)
def _overwritten_gradients(cell: Choices) -> Iterator[SpecError]:
    """torch ends such a step with a RuntimeError, in every version so far (pytorch/pytorch#169545)."""
    if cell.accumulate > 1 and cell.compile in CAPTURING and cell.device.startswith("cuda"):
        why = f"compile {cell.compile} replays CUDA graphs that overwrite the gradients of earlier micro-batches"
        yield SpecError("accumulate", cell.accumulate, f"{why}; choose --compile default or --accumulate 1")


@_between("accumulate", "batch_size", "ranks", "batch_is")
def _equal_micro_batches(cell: Choices) -> Iterator[SpecError]:
    size = cell.batch_size // cell.ranks if cell.batch_is == "global" else cell.batch_size
    if size % cell.accumulate:
        why = f"does not divide the {counted(size, 'sequence')} of a rank's batch equally; choose a divisor"
        yield SpecError("accumulate", cell.accumulate, why)


def lacks_gpu(backend: str, device: str) -> bool:
    """True of NCCL on a device that is no GPU of CUDA."""
    return backend == "nccl" and not device.startswith("cuda")


@_between("ranks", "device", "backend")
def _where_ranks_run(cell: Choices) -> Iterator[SpecError]:
    if cell.ranks > 1 and cell.device == "mps":
        yield SpecError("ranks", cell.ranks, "torch has no communication on mps; choose cpu or cuda")
    if lacks_gpu(cell.backend, cell.device):
        yield SpecError("backend", cell.backend, f"runs on cuda, not on {cell.device}; choose gloo")


@_between("ranks", "parallel", "optimizer", "pass_")
def _one_optimizer(cell: Choices) -> Iterator[SpecError]:
    if (
        cell.ranks > 1
        and cell.parallel.startswith("zero1")
        and cell.pass_ == "train-step"
        and is_imported(cell.optimizer)
    ):
        why = "shards torch's AdamW by ZeroRedundancyOptimizer; with an optimizer of your own choose ddp"
        yield SpecError("parallel", cell.parallel, why)


@_between("ranks", "cuda_graph", "sync")
def _by_one_rank_only(cell: Choices) -> Iterator[SpecError]:
    if cell.ranks == 1:
        return
    for field in ("cuda_graph", "sync"):
        if (value := getattr(cell, field)) != AXES[field].default:
            yield SpecError(field, value, "is of one rank; leave it out, or choose --ranks 1")
