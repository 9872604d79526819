"""Each entry of the form in one line, with its unit, and what each of its choices means."""

from __future__ import annotations

from cs336_tui.config.spec import AXES, CUSTOM_SIZE, SpecError, dims_of
from cs336_tui.stats.quantities import counted

FIELDS = {
    "preset": "A ready sweep, which fills the form; Enter opens the list.",
    "recent": "Your own models that were run before, with their arguments; Enter opens the list.",
    "size": "Models of the edition's table, several at once; custom: your own dimensions.",
    "head_dim": "Width of each head, in elements; several with commas.",
    "heads": "Heads of each width.",
    "d_model": "Width of the residual stream, in elements; divisible by the heads.",
    "d_ff": "Width of the feed-forward layers, in elements.",
    "num_layers": "Transformer blocks, one after the other.",
    "num_heads": "Attention heads of each block.",
    "vocab_size": "Tokens in the vocabulary.",
    "context_length": "Tokens in a sequence; any others below, with commas.",
    "batch_size": "Sequences in a step; several with commas.",
    "pass_": "The part of a training step that is timed.",
    "precision": "Number format of the matrix products, and of the parameters.",
    "device": "Where cells run; every chosen device runs each cell.",
    "lanes": "Cells side by side, each with a GPU or cores of its own; auto: a lane for each device.",
    "warmup_steps": "Steps that are not measured: 5, or 0,1,5; auto: until steady; 10s: for that time.",
    "measure_steps": "Measured steps: 10; auto: until the mean is known to 0.5 %; 30s: for that time.",
    "edition": "Year of the handout, which names the sizes.",
    "arch": "Architecture of the reference model.",
    "sync": "When the host waits for the device.",
    "seed": "Random seed of parameters and tokens.",
    "threads": "Threads of an operation on a CPU; empty: torch's own number.",
    "causal": "Tokens that a token attends to.",
    "ddof": "The std divides by n - ddof.",
    "timeout_s": "Seconds after which a cell is ended; empty: never.",
    "repeats": "How many times all cells run, round after round.",
    "reports": "Reports of the cells that end well, made after the last cell.",
    "after_oom": "After an out-of-memory: larger cells are skipped, or tried too.",
    "workload": "A whole model, or one operation alone.",
    "within": "Seconds for the whole run, from empty compile caches, beside what it took.",
    "model": "reference, or your own as package.module:Class; several with commas.",
    "model_args": "Arguments of your model beside the dimensions: rope_theta=10000, dropout=0.",
    "model_path": "Folders of your own code, several with commas; empty: the current one.",
    "annotations": "Of your model: softmax=package.module:function counts it to that part.",
    "attention": "How attention is computed; your own: package.module:function.",
    "norm": "The norm of each block; your own: package.module:function.",
    "checkpoint": "Activations recomputed in groups of so many blocks: 0, or 1,2,4; 0 keeps all.",
    "nesting": "Whether checkpointed groups lie one within the other.",
    "optimizer": "The optimizer of train-step; your own: package.module:Class.",
    "timer": "How steps are timed.",
    "ranks": "Processes that run one cell together: 1, or 1,2,4; on cuda a GPU each.",
    "accumulate": "Micro-batches of a train-step, which divide each rank's batch: 1, or 1,2,4.",
    "batch_is": "Whose batch the batch size is, of several ranks.",
    "parallel": "How several ranks share a step; ddp:25MB, or package.module:get_ddp.",
    "dropout": "Share of values that is dropped, after the embeddings and after each sublayer.",
    "attention_dropout": "Share of naive attention's weights that is dropped, after the softmax.",
}
"""By the field of the choice, else by the name of the entry. Where a choice has none here, its tip is it."""

CHOICES: dict[str, dict[str, str]] = {
    "pass_": {
        "inference": "forward without autograd (inference mode)",
        "forward": "forward with autograd, which keeps activations for a backward",
        "forward+loss": "forward and loss",
        "backward": "backward alone; its forward and loss run before it, untimed",
        "forward+backward": "forward, loss and backward",
        "train-step": "zero_grad, forward, loss, backward and optimizer step",
    },
    "precision": {
        "fp32": "float32, TF32 off",
        "tf32": "float32 tensors, matrix products in TF32 (10 bits of mantissa)",
        "bf16-mixed": "float32 parameters, autocast to bfloat16 round forward and loss",
        "fp16-mixed": "float32 parameters, autocast to float16; a train-step scales its loss",
        "bf16": "bfloat16 throughout, parameters too",
        "fp8-mixed": "bf16-mixed with float8 matrix products; from compute capability 8.9",
    },
    "edition": {
        "2024": "2024: batch 16, context 128; xl is 1600 wide",
        "2025": "2025: xl is 1600 wide, 2.7B is 2560 wide",
        "2026": "2026: xl is 2560 wide, 10B is 4608 wide",
    },
    "arch": {
        "swiglu-rope": "RMSNorm, SwiGLU, rotary positions (2025, 2026)",
        "gelu-learned": "two feed-forward matrices with GELU, learned positions (2024)",
    },
    "sync": {
        "each-step": "after each step, as the handout asks",
        "pipelined": "once after all measured steps, as a training loop",
    },
    "workload": {
        "language-model": "a whole language model",
        "attention": "attention alone, over random queries, keys and values",
        "norm": "a norm alone, over random rows",
        "collective": "one operation of several ranks on a message",
    },
    "causal": {"causal": "itself and those before it", "not causal": "all tokens"},
    "attention": {
        "naive": "materialises the scores, as the handout's",
        "sdpa": "torch's scaled_dot_product_attention, the backend left to torch",
        "flash": "torch's FlashAttention backend",
        "memory-efficient": "torch's memory-efficient backend",
        "cudnn": "torch's cuDNN backend",
        "math": "torch's backend of plain operations",
    },
    "norm": {
        "rmsnorm": "RMSNorm of elementwise operations",
        "layernorm": "torch's layer_norm, with a bias",
        "torch-rmsnorm": "torch's rms_norm",
    },
    "compile": {
        "off": "the model as it is written",
        "default": "torch.compile; compiling is timed apart",
        "reduce-overhead": "torch.compile with CUDA graphs of its parts",
        "max-autotune": "torch.compile that tries several kernels; compiling takes long",
    },
    "nesting": {
        "off": "groups one after the other",
        "halves": "groups in halves of halves: about log2(N / k) inputs kept, more computed again",
    },
    "optimizer": {
        "adamw": "torch's AdamW, the implementation left to torch",
        "adamw-fused": "AdamW in one kernel over all parameters",
        "adamw-foreach": "AdamW in a few kernels over lists of parameters",
        "adamw-for-loop": "AdamW parameter by parameter",
    },
    "cuda_graph": {"off": "kernels launched one by one", "step": "the whole step replayed as one CUDA graph"},
    "inputs": {
        "auto": "fresh where steps are timed one by one, else fixed",
        "fresh": "other tokens in each step, outside of its time",
        "fixed": "the same tokens in every step",
    },
    "timer": {
        "step": "each step timed by itself, phases too",
        "do_bench": "as triton.testing.do_bench: L2 flushed before each step, one sync at the end",
    },
    "flush_l2": {"yes": "on CUDA the L2 is flushed before each step, untimed", "no": "the L2 stays as it is"},
    "bias": {"off": "linear layers without a bias", "on": "a bias in every linear layer but the head"},
    "weight_tying": {"off": "the head has a matrix of its own", "on": "the head's matrix is the token embedding"},
    "gelu": {"exact": "by the error function", "tanh": "its tanh approximation"},
    "batch_is": {"per-rank": "each rank has a batch of that size", "global": "the ranks divide one of that size"},
    "parallel": {
        "none": "each rank trains alone, without communication",
        "ddp": "DistributedDataParallel: gradients averaged in buckets; ddp:25MB sets their size",
        "zero1": "DDP with the optimizer state divided among ranks",
        "fsdp2": "parameters, gradients and optimizer state divided among ranks (fully_shard)",
    },
    "backend": {"auto": "nccl on cuda, gloo elsewhere", "gloo": "gloo, over the host", "nccl": "nccl, between GPUs"},
    "collective": {
        "all-reduce": "each rank gets the sum",
        "all-gather": "each rank gets the parts of all",
        "reduce-scatter": "each rank gets its part of the sum",
        "broadcast": "each rank gets the message of the first",
        "all-to-all": "each rank sends a part to each",
    },
    "ddof": {"1": "sample std, by n - 1", "0": "numpy's default, by n"},
    "reports": {
        "kernels": "time by kernel, operator and part of the model",
        "memory": "a timeline of what memory holds",
        "precision": "number formats of parameters, activations and gradients",
    },
    "after_oom": {"skip larger": "cells that need no less are skipped", "try all": "they are tried all the same"},
}
"""By the field, as in `FIELDS`, and the choice."""


def meaning(field: str, choice: str | None = None, edition: str = "2026", name: str = "") -> str:
    """The line of an entry, and of a choice where one is under the cursor; `field` as `SpecError` names it, or of its
    entry for other values. `name`: that of the device which the choice means."""
    axis = AXES.get(field) or next((a for a in AXES.values() if field in (a.name, a.others)), None)
    key = axis.field if axis else field
    about = FIELDS.get(key) or (axis.tip if axis else "") or ""
    if choice is None:
        return about
    if key == "size":
        return f"{choice}: {_dimensions(choice, edition)}"
    if key == "context_length":
        return f"{choice}: tokens in a sequence; any others in the line below, with commas"
    if key == "device":
        return f"{choice}: {name or 'the best device of this machine' if choice == 'auto' else name or 'a device'}"
    found = CHOICES.get(key, {}).get(choice, "")
    return f"{choice}: {found}" if found else about


def _dimensions(size: str, edition: str) -> str:
    if size == CUSTOM_SIZE:
        return "your own d_model, d_ff, layers and heads, beside the named ones"
    try:
        dims = dims_of(size, edition)
    except SpecError as error:
        return error.allowed
    layers, heads = counted(dims.num_layers, "layer"), counted(dims.num_heads, "head")
    return f"d_model {dims.d_model}, d_ff {dims.d_ff}, {layers}, {heads}"
