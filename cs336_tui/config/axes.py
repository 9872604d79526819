"""The choices of a cell, each declared once: a field of `Choices` with its `Axis`.

Derived from them are the checks of a value, `Sweep`, the options of `cs336-tui bench`, the keys of presets, the form,
the columns, filters and pivots of tables, and which cells count as alike. Values stand in `config.values`, rules
between choices in `config.rules`.
"""

from typing import Annotated

import msgspec

from cs336_tui.config.axis import Axis, Cell, Kind
from cs336_tui.config.values import (
    ATTENTIONS,
    COMPUTING,
    LANGUAGE_MODEL,
    NORMS,
    OPTIMIZERS,
    PARALLELS,
    Arch,
    Backend,
    BatchIs,
    Compile,
    CudaGraph,
    Edition,
    Gelu,
    Inputs,
    Nesting,
    Operation,
    Pass,
    Precision,
    Switch,
    Sync,
    Timer,
    Work,
    check_annotations,
    check_device,
    check_dropout,
    check_parallel,
    check_precision,
    check_share,
    check_steps_for,
    check_warmup_for,
    lacks_attention,
    lacks_graphs,
    lacks_precision,
)
from cs336_tui.config.variants import CROSS_ENTROPY, IN_MODEL, REFERENCE, is_imported, short
from cs336_tui.stats.quantities import counted

_OF_MODEL = (LANGUAGE_MODEL,)
_AS_VARIANT: tuple[Kind, ...] = ("prediction", "memory", "time")

_WHOSE_BATCH = {"per-rank": "of each rank", "global": "of all ranks together"}


def _own_words(name: str) -> tuple[str, ...]:
    return (short(name),)


def _is_ours(cell: Cell) -> bool:
    return not is_imported(cell.model)


def _drops(cell: Cell) -> bool:
    return _is_ours(cell) and cell.pass_ != "inference"


_DIMENSION = Axis(sweep="-", kinds=("prediction",), compared="work")


# fmt: off
class Choices(msgspec.Struct, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """One cell's choices: a model, a pass, a precision and a device, timed for a number of steps.

    `seed` fixes parameters and tokens. `threads` None is torch's own default. With `warmup_auto`, `warmup_steps` is the
    most; with `steps_auto`, the share of the mean to which its confidence interval narrows, `measure_steps` is; so are
    both with `warmup_for` and `steps_for`, the seconds to which the steps come.

    `model`, `attention`, `norm`, `optimizer` and `loss` are names, or ``package.module:name`` of a user's own, looked
    for in the folders of `model_path` too. `annotations` are pairs of a named range and ``package.module:function``.
    `checkpoint` recomputes activations in groups of so many blocks, 0 for not at all; with `nesting` ``halves`` the
    groups lie in halves of halves. With workload ``attention``, `d_model` is the width of the queries, keys and values
    of all `num_heads` together, and `causal` is whether a token sees its past only. With ``norm`` it is the width of
    each of the `batch_size` times `context_length` rows. With ``collective`` `size` is that of the message, such as
    10MB, which `d_model` and `d_ff` number, and `collective` the operation.
    `recording` is the name of what others recorded; of such a cell the device alone is known, and nothing else counts.

    A choice that is added has a default, so that logs of before open.
    """

    size: Annotated[str, Axis(
        sweep="sizes", several=True, usual=("tiny",), help="Model sizes of the handout edition, such as small,medium",
        group="what", widget="chips", kinds=(), compared="name", stand_in="",
    )]
    edition: Annotated[Edition, Axis(
        section="What to run", usual="2026",
        help="Handout edition, which defines the sizes: {values}", group="more", kinds=(), compared="name",
        stand_in="2026", workloads=COMPUTING,
    )]
    arch: Annotated[Arch, Axis(
        section="What to run", usual="swiglu-rope",
        help="Reference model: {values}", group="more", stand_in="gelu-learned", workloads=COMPUTING,
    )]
    d_model: Annotated[int, msgspec.structs.replace(_DIMENSION, title="d_model",
        help="Model width, in place of --size; with --d-ff, --num-layers and --num-heads.",
    )]
    d_ff: Annotated[int, msgspec.structs.replace(
        _DIMENSION, title="d_ff", help="Feed-forward width; with --d-model.",
    )]
    num_layers: Annotated[int, msgspec.structs.replace(
        _DIMENSION, title="layers", help="Transformer blocks; with --d-model.",
    )]
    num_heads: Annotated[int, msgspec.structs.replace(
        _DIMENSION, title="heads", help="Attention heads; with --d-model, or with --workload attention.",
    )]
    vocab_size: Annotated[int, Axis(
        usual=10_000, help="Vocabulary size", column="vocab", title="vocabulary", label="vocab", kinds=("prediction",),
        compared="work", workloads=_OF_MODEL,
    )]
    context_length: Annotated[int, Axis(
        sweep="contexts", several=True, usual=(128,), option="context", help="Context lengths in tokens", group="what",
        widget="chips", values=("128", "256", "512", "1024"), hint="other, as 64,96",
        kinds=("prediction",), compared="work", workloads=COMPUTING,
    )]
    batch_size: Annotated[int, Axis(
        section="What to run",
        sweep="batches", several=True, usual=(4,), option="batch", help="Batch sizes in sequences", group="how",
        kinds=("prediction",), compared="work", workloads=COMPUTING,
    )]
    pass_: Annotated[Pass, Axis(
        sweep="passes", several=True, usual=("forward", "forward+backward", "train-step"),
        help="What is timed: {values}", group="what", compared="work", workloads=COMPUTING,
    )]
    precision: Annotated[Precision, Axis(
        tried=("fp32", "bf16-mixed", "bf16"),
        sweep="precisions", several=True, usual=("fp32",), help="Precision: {values}", check=check_precision,
        lacks=lacks_precision, group="what", kinds=(*_AS_VARIANT, "pace"), stand_in="fp32",
    )]
    device: Annotated[str, Axis(
        section="What to run",
        sweep="devices", several=True, usual=("auto",), help="Where to run: auto, every, cpu, mps, cuda, cuda:N",
        check=check_device, group="how", widget="chips", kinds=(*_AS_VARIANT, "pace"), stand_in="cpu", recorded=True,
    )]
    sync: Annotated[Sync, Axis(help="When to wait for the device: {values}", group="more", kinds=())] = "each-step"
    warmup_steps: Annotated[int, Axis(
        sweep="warmups", several=True, option="warmup", least=0, title="warm-up", group="how",
        hint="5 or 0,1,5 or auto or 10s",
        help="Warm-up steps: a number or several; auto: until steps are steady, at most {most} (auto:50: at most 50); "
        "or a time such as 10s",
        kinds=(), stand_in=0,
    )] = 5
    measure_steps: Annotated[int, Axis(
        sweep="steps", option="steps", group="how", kinds=(), compared="name", stand_in=1, hint="10 or auto or 30s",
        help="Measured steps: a number; auto: until the interval of the mean is as narrow as --interval, or more steps "
        "would not narrow it, at most {most} (auto:200: at most 200); or a time such as 30s",
    )] = 10
    seed: Annotated[int, Axis(
        least=0, help="Seed of the random parameters and tokens", group="more", kinds=(), compared="name",
    )] = 0
    threads: Annotated[int | None, Axis(
        help="CPU threads of one operation (torch's intra-op threads)",
        group="more", hint="torch's own", kinds=("time",), compared="name",
    )] = None
    warmup_auto: Annotated[bool, Axis(option="-", kinds=())] = False
    steps_auto: Annotated[float | None, Axis(option="-", check=check_share, kinds=(), compared="name")] = None
    warmup_for: Annotated[float | None, Axis(option="-", check=check_warmup_for, kinds=())] = None
    steps_for: Annotated[float | None, Axis(option="-", check=check_steps_for, kinds=(), compared="name")] = None
    workload: Annotated[Work, Axis(
        section="One operation alone",
        help="What a cell runs: {values}; all but the first: that operation alone", group="variants",
        kinds=(*_AS_VARIANT, "pace"), compared="work",
        tip="language-model: a whole model; attention: attention alone, over random queries, keys and values; "
        "norm: a norm alone, over random rows; collective: one operation of several ranks on a message of a size.",
    )] = "language-model"
    causal: Annotated[bool, Axis(
        section="One operation alone",
        help="Causal mask, with --workload attention", group="variants", widget="one", label="mask",
        values=("causal", "not causal"), compared="work", workloads=("attention",), said=lambda _: ("not causal",),
    )] = True
    model: Annotated[str, Axis(
        section="Your model",
        sweep="models", several=True, values=(REFERENCE,), own="Class", metavar="package.module:Class,...",
        help="Your model: a class, or a function that returns a model; {default} is the built-in one",
        group="variants", widget="names", hint="reference, or yours", workloads=_OF_MODEL, kinds=(*_AS_VARIANT, "pace"),
        tip="Your own: package.module:ClassOrFactory; reference is the built-in model. Several with commas.",
        said=_own_words,
    )] = REFERENCE
    model_args: Annotated[tuple[tuple[str, str], ...], Axis(
        section="Your model", arguments_of="model",
        option="model-arg", column="model-args", label="arguments", group="variants", widget="pairs",
        help="Argument of your model besides the dimensions, such as rope_theta=10000, or several values as "
        "10000,50000 (for one model of several Class.rope_theta=10000); may be repeated.",
        hint="none, as dropout=0", workloads=_OF_MODEL,
        applies=lambda spec: is_imported(spec.model), said=lambda pairs: tuple(map("=".join, pairs)),
        tip="Arguments that your model wants beside the dimensions: rope_theta=10000, dropout=0.",
    )] = ()
    model_path: Annotated[tuple[str, ...], Axis(
        section="Your model",
        label="folder", column="-", group="variants", widget="pieces", metavar="FOLDER", compared="name",
        help="Folder with your code; may be repeated. [default: the current folder]",
        hint="the current one", applies=lambda spec: spec.brings_own_code,
        tip="Folders with your code, several with commas; empty: the current folder.",
    )] = ()
    annotations: Annotated[tuple[tuple[str, str], ...], Axis(
        section="Your model",
        option="annotate", column="-", group="variants", widget="pairs", metavar="RANGE=module:function",
        check=check_annotations, kinds=("prediction",), compared="name",
        help="Count time and memory of this function of your model as part RANGE, such as softmax; may be repeated.",
        hint="part=module:name", workloads=_OF_MODEL, applies=lambda spec: is_imported(spec.model),
        tip="Of your own model: softmax=package.module:function counts that function to this part.",
    )] = ()
    attention: Annotated[str, Axis(
        searched=True, tried=("naive", "sdpa"),
        sweep="attentions", several=True, values=ATTENTIONS, own="function", help="Attention implementation: {values}",
        lacks=lacks_attention, group="variants", hint="or your module:name", kinds=(*_AS_VARIANT, "pace"),
        said=_own_words, workloads=(*_OF_MODEL, "attention"),
        tip="naive materialises the scores; sdpa lets torch choose; the others are torch's backends by name.",
    )] = "naive"
    optimizer: Annotated[str, Axis(
        searched=True, tried=("adamw", "adamw-fused"),
        sweep="optimizers", several=True, values=OPTIMIZERS, own="Class", help="Optimizer of train-step: {values}",
        group="variants", workloads=_OF_MODEL, hint="or your module:name",
        applies=lambda spec: spec.pass_ == "train-step", said=_own_words,
        tip="torch's AdamW: adamw leaves the implementation to torch, the others are chosen by name.",
    )] = "adamw"
    loss: Annotated[str, Axis(
        values=(CROSS_ENTROPY, IN_MODEL), own="function", group="variants",
        help="Loss: {values}; in-model: forward(tokens, targets) of your model returns it",
        widget="text", hint=CROSS_ENTROPY, workloads=_OF_MODEL, said=_own_words,
        tip="Your own: package.module:function; in-model: forward(tokens, targets) returns it.",
    )] = CROSS_ENTROPY
    compile: Annotated[Compile, Axis(
        searched=True, tried=("off", "default"),
        sweep="compiles", several=True, before="optimizer", help="Mode of torch.compile: {values}", group="variants",
        long_title="torch.compile", lacks=lambda value, device: device.cannot_compile or "" if value != "off" else "",
        kinds=("memory", "time", "pace"),
        unpredicted="predicted is the model as it is written; torch.compile may need less, or more",
        tip="torch.compile and its modes; compiling is timed apart.",
        said=lambda mode: ("compiled" if mode == "default" else f"compiled {mode}",),
    )] = "off"
    checkpoint: Annotated[int, Axis(
        searched=True, tried=(0, 1),
        sweep="checkpoints", several=True, before="optimizer", least=0, group="variants", workloads=_OF_MODEL,
        hint="0, or every k blocks", help="Activation checkpointing in groups of N blocks; 0: off",
        tip="Recompute activations in groups of so many blocks: 1, or several as 0,1,2,4; 0 keeps them all.",
        said=lambda blocks: (f"checkpoint every {blocks}",),
        detail=lambda blocks: f"activations recomputed in groups of {counted(blocks, 'block')}",
    )] = 0
    nesting: Annotated[Nesting, Axis(
        sweep="nestings", several=True, before="optimizer", group="variants", workloads=_OF_MODEL,
        applies=lambda spec: spec.checkpoint > 0,
        help="Nested checkpointing: {values}; halves: the groups of --checkpoint, nested by halves",
        tip="halves: of N blocks about log2(N / k) inputs are kept at once instead of N / k; more is computed again.",
        said=lambda _: ("nested",), detail=lambda _: "groups in halves of halves, recomputed one within the other",
    )] = "off"
    cuda_graph: Annotated[CudaGraph, Axis(
        searched=True,
        sweep="cuda_graphs", several=True, help="CUDA graphs: {values}; step: replay the whole step as one graph",
        lacks=lacks_graphs, group="variants", title="CUDA graph", kinds=("memory", "time", "pace"),
        unpredicted="predicted is the step without its CUDA graph, which keeps what it uses for itself",
        said=lambda _: ("CUDA graph",), detail=lambda _: "of the whole step",
        tip="step: replay the whole step as one CUDA graph.",
    )] = "off"
    timer: Annotated[Timer, Axis(
        section="How it runs", sweep="timers", several=True, group="variants", kinds=(),
        help="How steps are timed: {values}; do_bench: as triton.testing.do_bench, with warm-up and steps by time, the "
        "L2 cache flushed before each step, one synchronisation at the end",
        said=lambda timer: (timer,), detail=lambda _: "as triton.testing.do_bench: events round whole steps",
        tip="do_bench: as triton.testing.do_bench, the L2 flushed before each step, one synchronisation at the end.",
    )] = "step"
    flush_l2: Annotated[bool, Axis(
        section="How it runs", group="variants", title="flush L2", column="flush-l2", kinds=("time",),
        help="On CUDA: flush the L2 cache before each step, outside the timed part; do_bench always does",
        applies=lambda spec: spec.timer != "do_bench",
        said=lambda _: ("L2 flushed",), detail=lambda _: "before each step",
        tip="On CUDA: zero a buffer larger than the L2 before each step, outside of its time.",
    )] = False
    inputs: Annotated[Inputs, Axis(
        section="How it runs", sweep="inputs", group="variants", kinds=(), compared="name",
        workloads=_OF_MODEL,
        help="Tokens of the measured steps: {values}; fresh: others in each step but every fourth, put there outside "
        "of its time; auto: fresh where steps are timed one by one",
        said=lambda which: (f"{which} tokens",),
        tip="fresh: other tokens in each step, so that none is answered from memory.",
    )] = "auto"
    check: Annotated[str, Axis(
        section="How it runs", sweep="checks", values=("auto", "off"), own="Class", group="variants", kinds=(),
        compared="name", widget="text", hint="auto", said=lambda _: (),
        help="After the measured steps compare results with a reference: {values}; of your own model name another one "
        "as package.module:Class, auto compares it with a fresh copy of itself",
        tip="auto: afterwards a step is compared with a reference; or your module:Class.",
    )] = "auto"
    within: Annotated[int | None, Axis(
        section="How long",
        metavar="SECONDS", group="more", title="within (s)", label="within s", hint="any time", kinds=(),
        compared="name",
        help="Time limit to hold the whole run against, from empty compile caches; the run is not stopped",
        tip="Seconds in which the whole run is to end, from empty compile caches; shown beside what it took.",
    )] = None
    dropout: Annotated[float, Axis(
        sweep="dropouts", several=True, check=check_dropout, group="variants", workloads=_OF_MODEL,
        hint="0, or 0.1", applies=_drops, help="Dropout rate of the embeddings and of each sublayer's output",
        tip="Of the reference model: after the embeddings and after each sublayer, before it is added.",
        said=lambda share: (f"dropout {share:g}",),
    )] = 0.0
    attention_dropout: Annotated[float, Axis(
        sweep="attention_dropouts", several=True, check=check_dropout, group="variants", workloads=_OF_MODEL,
        label="attn drop", hint="0, or 0.1", applies=_drops,
        help="Dropout rate of the attention weights, with naive attention",
        tip="Of the reference model with naive attention: after the softmax.",
        said=lambda share: (f"attention dropout {share:g}",),
    )] = 0.0
    bias: Annotated[Switch, Axis(
        sweep="biases", several=True, group="variants", workloads=_OF_MODEL, applies=_is_ours,
        help="Biases in all linear layers but the head: {values}", said=lambda _: ("biases",),
        tip="Of the reference model: in every linear layer but the head.",
    )] = "off"
    weight_tying: Annotated[Switch, Axis(
        sweep="weight_tyings", several=True, group="variants", workloads=_OF_MODEL, applies=_is_ours,
        label="tying", said=lambda _: ("tied weights",),
        help="One weight matrix for token embedding and head: {values}",
        tip="Of the reference model: one matrix is the token embedding and the head.",
    )] = "off"
    gelu: Annotated[Gelu, Axis(
        sweep="gelus", several=True, group="variants", workloads=_OF_MODEL,
        applies=lambda spec: _is_ours(spec) and spec.arch == "gelu-learned",
        help="GELU formula of --arch gelu-learned: {values}", said=lambda kind: (f"{kind} GELU",),
        tip="exact: by the error function; tanh: its approximation.",
    )] = "exact"
    norm: Annotated[str, Axis(
        sweep="norms", several=True, before="compile", values=NORMS, own="function",
        help="Norm: {values}", group="variants", hint="or your module:name", workloads=(*_OF_MODEL, "norm"),
        kinds=(*_AS_VARIANT, "pace"), said=_own_words, applies=_is_ours,
        tip="rmsnorm is made of elementwise operations; the others are torch's own, layernorm with a bias.",
    )] = "rmsnorm"
    ranks: Annotated[int, Axis(
        tried=(1, 2), section="Several ranks",
        sweep="ranks", several=True, group="variants", hint="1, or 1,2,4", kinds=(*_AS_VARIANT, "pace"),
        help="Number of ranks: processes that run one cell together",
        tip="Processes that run one cell together: 1, or several as 1,2,4. On cuda each has a GPU of its own, on cpu "
        "they share its cores.",
        said=lambda ranks: (f"{ranks} ranks",), detail=lambda ranks: counted(ranks, "process"),
    )] = 1
    accumulate: Annotated[int, Axis(
        section="Several ranks",
        sweep="accumulations", several=True, group="variants", workloads=_OF_MODEL, kinds=(*_AS_VARIANT, "pace"),
        hint="1, or 1,2,4", help="Gradient accumulation: micro-batches of each rank's batch for one optimizer "
        "step; ranks communicate after the last one, if their wrapper can wait",
        tip="Micro-batches of a train-step: 1, or several as 1,2,4. They divide the batch of each rank.",
        said=lambda count: (f"{count} micro-batches",), detail=lambda count: f"{counted(count, 'micro-batch')} a step",
    )] = 1
    batch_is: Annotated[BatchIs, Axis(
        section="Several ranks",
        group="variants", workloads=_OF_MODEL, applies=lambda spec: spec.ranks > 1, kinds=(*_AS_VARIANT, "pace"),
        help="Meaning of --batch with several ranks: {values}; global: shared equally among them",
        tip="The batch of several ranks. per-rank: each has one of that size; global: they divide one of that size.",
        said=lambda whose: (f"{whose} batch",), detail=lambda whose: _WHOSE_BATCH[whose],
    )] = "per-rank"
    parallel: Annotated[str, Axis(
        tried=("ddp", "zero1", "fsdp2"), section="Several ranks",
        sweep="parallels", several=True, values=PARALLELS, own="get_ddp", check=check_parallel, group="variants",
        workloads=_OF_MODEL, applies=lambda spec: spec.ranks > 1, kinds=(*_AS_VARIANT, "pace"),
        hint="or ddp:25MB, or yours", said=lambda how: (short(how) if is_imported(how) else how,),
        help="How ranks share a step: {values}; ddp:25MB sets the bucket size",
        tip="How several ranks share a step. none: each trains alone, without communication; ddp:25MB: the size of "
        "buckets; yours: package.module:get_ddp.",
    )] = "none"
    backend: Annotated[Backend, Axis(
        section="Several ranks",
        sweep="backends", several=True, group="variants", applies=lambda spec: spec.ranks > 1, kinds=("time",),
        help="Communication backend: {values}; auto: nccl on cuda, else gloo",
        tip="Communication of several ranks; auto: nccl on cuda, gloo elsewhere.", said=lambda name: (name,),
    )] = "auto"
    collective: Annotated[Operation, Axis(
        section="One operation alone",
        sweep="collectives", several=True, option="op", group="variants", workloads=("collective",), title="operation",
        column="op", kinds=("memory", "time", "pace"), compared="work",
        help="Operation of --workload collective: {values}",
        tip="What the ranks do with a message of the size, such as 10MB.",
    )] = "all-reduce"
    attention_args: Annotated[tuple[tuple[str, str], ...], Axis(
        section="Your model", arguments_of="attention", before="norm",
        option="attention-arg", column="attention-args", label="attn args", group="variants", widget="pairs",
        help="Argument of your attention: one value or several, such as BLOCK_M=16,32,64; may be repeated.",
        hint="none, as BLOCK_M=64", workloads=(*_OF_MODEL, "attention"),
        applies=lambda spec: is_imported(spec.attention), said=lambda pairs: tuple(map("=".join, pairs)),
        tip="Arguments that your attention takes besides queries, keys, values and mask.",
    )] = ()
    optimizer_args: Annotated[tuple[tuple[str, str], ...], Axis(
        section="Your model", arguments_of="optimizer", before="loss",
        option="optimizer-arg", column="optimizer-args", label="opt args", group="variants", widget="pairs",
        help="Argument of your optimizer: one value or several, such as lr=0.001,0.01; may be repeated.",
        hint="none, as lr=0.001", workloads=_OF_MODEL,
        applies=lambda spec: is_imported(spec.optimizer) and spec.pass_ == "train-step",
        said=lambda pairs: tuple(map("=".join, pairs)),
        tip="Arguments that your optimizer takes besides the parameters.",
    )] = ()
    recording: Annotated[str, Axis(
        sweep="-", option="-", column="recording", kinds=(*_AS_VARIANT, "pace"), recorded=True,
        applies=lambda spec: bool(spec.recording),
    )] = ""
# fmt: on
