"""Honest cells, of which no doubt may be said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cs336_tui.config.spec import PASSES, dims_of, size_names
from tests.referee.corpus import ALONE, ATTENTION_ALONE, BASE, RANKS, Honest


def _small(size: str, edition: str) -> dict[str, int]:
    """Dimensions with the proportions of a named size: so many heads for its width, and its feed-forward network."""
    dims = dims_of(size, edition)
    heads = min(dims.num_heads, 8)
    width = 8 * heads
    return {
        "d_model": width, "d_ff": round(width * dims.d_ff / dims.d_model), "num_heads": heads,
        "num_layers": min(dims.num_layers // 4, 4), "vocab_size": 320,
    }  # fmt: skip


def _honest_sizes() -> Iterator[Honest]:
    for edition, arch in (("2024", "gelu-learned"), ("2025", "swiglu-rope"), ("2026", "swiglu-rope")):
        for size, pass_ in zip(size_names(edition), PASSES[::-1], strict=True):
            changes = {"edition": edition, "arch": arch, "pass_": pass_, **_small(size, edition)}
            yield Honest(f"size/{edition}/{size}/{pass_}", changes)


_TRAIN: dict[str, Any] = {"pass_": "train-step"}
_BOTH: dict[str, Any] = {"pass_": "forward+backward"}
_GELU: dict[str, Any] = {"arch": "gelu-learned"}
_NORM_ALONE = {**ALONE, "workload": "norm", "pass_": "backward"}
_SHAPES: dict[str, dict[str, int]] = {
    "large vocabulary": {"vocab_size": 4096, "num_layers": 1},
    "deep and narrow": {"num_layers": 12, "d_model": 16, "d_ff": 48, "num_heads": 2},
    "long context": {"context_length": 512, "batch_size": 1, "num_layers": 2},
    "many sequences": {"context_length": 8, "batch_size": 64},
    "one wide head": {"num_heads": 1},
    "feed-forward network as wide as the vocabulary": {"d_ff": 256},
    "all alike": {"d_ff": 64, "vocab_size": 64},
    "wide feed-forward network": {"d_ff": 1024, "num_layers": 2},
}


def _of(field: str, *values: Any, **changes: Any) -> tuple[Honest, ...]:
    """An honest cell of each value of a field."""
    pass_ = changes.get("pass_", BASE["pass_"])
    return tuple(Honest(f"{field}/{value}/{pass_}", {field: value, **changes}) for value in values)


def _models(*names: str, **changes: Any) -> tuple[Honest, ...]:
    """An honest cell of each of these models."""
    return _of("model", *(f"honest_models:{name}" for name in names), **changes)


HONEST: tuple[Honest, ...] = (
    *_honest_sizes(),
    *(Honest(f"pass/{pass_}", {"pass_": pass_}) for pass_ in PASSES),
    *_of("attention", "sdpa", "flash", "math", "honest:by_mask", "honest:by_sdpa", "honest:Tiled", "honest:by_baddbmm"),
    *_of("attention", "sdpa", "flash", "honest:by_mask", "honest:in_place_of_heads", "honest:Tiled", **_TRAIN),
    *(
        Honest(f"attention alone/{attention}/{pass_}", {**ATTENTION_ALONE, "attention": attention, "pass_": pass_})
        for attention, pass_ in (
            ("naive", "forward"), ("naive", "backward"), ("sdpa", "forward+backward"), ("honest:Tiled", "backward"),
        )
    ),
    *_of("norm", "layernorm", "torch-rmsnorm", "honest:rmsnorm", "honest:Norm", **_TRAIN),
    *(Honest(f"norm alone/{norm}", {**_NORM_ALONE, "norm": norm}) for norm in ("rmsnorm", "layernorm", "honest:Norm")),
    Honest("norm alone/bf16", {**_NORM_ALONE, "precision": "bf16"}),
    *(
        Honest(f"attention alone/sdpa/{kind}", {**ATTENTION_ALONE, "attention": "sdpa", "precision": kind, **_BOTH})
        for kind in ("bf16", "bf16-mixed")
    ),
    Honest("attention alone/heads", {**ATTENTION_ALONE, "num_heads": 4, "size": "4xd16", **_BOTH}),
    *_of("checkpoint", 1, 2, **_TRAIN),
    Honest("checkpoint/nested", {**_BOTH, "checkpoint": 1, "nesting": "halves"}),
    *_of("accumulate", 2, 4, **_TRAIN),
    *_of("optimizer", "adamw-fused", "adamw-foreach", "adamw-for-loop", **_TRAIN),
    *_of("optimizer", "honest:AdamW", "honest:DecaysMatricesAlone", "honest:ClipsFirst", "honest:fused", **_TRAIN),
    Honest("optimizer/two steps", {**_TRAIN, "optimizer": "honest:AdamW", "warmup_steps": 1, "measure_steps": 2}),
    *_of("optimizer", "honest:WarmsUpRate", "honest:KeepsAverages", **_TRAIN),
    *_of("optimizer", "honest:Clips", "honest:ClearsGradients", "honest:MomentumInPlace", **_TRAIN),
    *_of("optimizer", "torch.optim:Adam", "torch.optim:SGD", "torch.optim:RMSprop", **_TRAIN),  # none is AdamW
    *_of("loss", "honest:logsumexp_loss", "honest:flat_loss", "honest:chunked_loss", "honest:LossModule", **_BOTH),
    *_of("loss", "honest:label_smoothing", "honest:z_loss", "honest:focal", **_TRAIN),
    *_of("loss", "honest:label_smoothing", "honest:z_loss", precision="bf16-mixed", **_BOTH),
    Honest("loss/two ranks", {**RANKS, "parallel": "ddp", "loss": "honest:label_smoothing"}),
    Honest("loss/accumulated", {**_TRAIN, "accumulate": 2, "loss": "honest:z_loss"}),
    *_of("dropout", 0.1, **_TRAIN),
    *_of("attention_dropout", 0.1, **_TRAIN),
    *_of("bias", "on", **_TRAIN),
    *_of("weight_tying", "on", **_TRAIN),
    *_of("gelu", "tanh", **_GELU, **_BOTH),
    *_of("precision", "bf16-mixed", "bf16"),
    *_of("precision", "bf16-mixed", "bf16", **_TRAIN),
    *_of("sync", "pipelined", **_TRAIN),
    *_of("timer", "do_bench"),
    Honest("steps auto", {"warmup_steps": 20, "warmup_auto": True, "measure_steps": 60, "steps_auto": 0.02}),
    *_of("threads", None, 2, **_TRAIN),
    *_of("batch_size", 1),
    *_of("context_length", 8),
    *(Honest(f"shape/{name}", {**_TRAIN, **shape}) for name, shape in _SHAPES.items()),
    Honest("no warm-up", {**_TRAIN, "warmup_steps": 0, "measure_steps": 5}),
    Honest("two steps", {**_BOTH, "measure_steps": 2}),
    *_of("model", "lm:LM"),
    *_models("GPT", "GPTWithoutFlash", "Drops", "TorchsEncoder", pass_="inference"),
    Honest("model/arguments", {**_TRAIN, "model": "honest_models:GPT", "model_args": (("dropout", "0.1"),)}),
    *_of("model", "lm:LM", **_TRAIN),
    *_models("QuantisesTheBatch", pass_="inference"),
    *_models(
        "HuggingFaceLike", "WithSdpa", "Tied", "Counts", "Drops", "FrozenEmbedding", "WatchesItself",
        "ScalesGradients", "GPT", "LMWithOwnNorm", "Recurrent", "with_batches", "CheckpointsItself",
        "GroupedQueries", "ParallelBlocks", "BatchedExperts", "DropsBlocks", "Convolutions", **_TRAIN,
    ),
    *_models(
        "ReturnsDict", "LazyTables", "ChunkedHead", "SequenceBySequence", "LogsBeside", "SlowFirstForward", "GPT",
        "GPTWithoutFlash", "WithSdpa", "GroupedQueries", "WithEinsum", "PadsVocabulary", "RotatesByProduct",
        "Recurrent",
    ),
    *(
        Honest(f"{name} in {precision}", {"model": name, "precision": precision, **_BOTH})
        for precision in ("bf16-mixed", "bf16")
        for name in ("lm:LM", "honest_models:RotatesByProduct", "honest_models:LogitsInFloat32", "honest_models:GPT")
    ),
    *(Honest(f"parallel/{how}", {**RANKS, "parallel": how}) for how in ("none", "ddp", "ddp:100KB", "zero1", "fsdp2")),
    *(Honest(f"parallel/{how}", {**RANKS, "parallel": how}) for how in ("honest:DDP", "honest:FlatDDP")),
    Honest("parallel/sharded optimizer", {**RANKS, "parallel": "ddp", "optimizer": "honest:ShardedOptimizer"}),
    Honest("parallel/fsdp2, checkpointed", {**RANKS, "parallel": "fsdp2", "checkpoint": 1, "attention": "sdpa"}),
    Honest("parallel/ddp, bf16-mixed", {**RANKS, "parallel": "ddp", "precision": "bf16-mixed", **_BOTH}),
    Honest("parallel/ddp, dropout", {**RANKS, "parallel": "ddp", "dropout": 0.1}),
    Honest("parallel/forward", {**RANKS, "parallel": "ddp", "pass_": "forward"}),
    Honest("parallel/global batch", {**RANKS, "parallel": "ddp", "batch_size": 4, "batch_is": "global"}),
    Honest("parallel/accumulated", {**RANKS, "parallel": "ddp", "accumulate": 2}),
    Honest("parallel/own model", {**RANKS, "parallel": "fsdp2", "model": "honest_models:HuggingFaceLike"}),
    *(
        Honest(f"compile/{pass_}", {"compile": "default", "pass_": pass_}, slow=True)
        for pass_ in ("forward", "train-step")
    ),
    Honest("compile/own model", {"compile": "default", "model": "honest_models:GPT", **_BOTH}, slow=True),
)  # fmt: skip
