"""Cells that cheat, each with what must be said of it, and honest cells, of which no doubt may be said.

Both are named as users name their code: the components lie in `USERS`, which is the cells' model path. Dimensions are
small, so that a cell of one rank takes a fraction of a second, and large enough that a step which computes nothing is
faster than any processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cs336_tui.config.spec import PASSES, CellSpec, dims_of, size_names

USERS = Path(__file__).with_name("users")

WORK, IMPOSSIBLE, LESS, MORE, DIFFERS, REMEMBERS, PRECISION = (
    "work-outside-steps", "impossible", "less-work", "more-work", "differs", "remembers-inputs", "other-precision",
)  # fmt: skip
DOUBTS = frozenset({WORK, IMPOSSIBLE, LESS, MORE, DIFFERS, REMEMBERS, PRECISION})
"""The referee's doubts: no honest cell may have one."""
FAILED = "failed"
"""In place of a verdict: the cell ends without a result, and says why."""

WARM_UP, STEPS = 3, 12
BASE: dict[str, Any] = {
    "size": "custom", "edition": "2026", "arch": "swiglu-rope", "d_model": 64, "d_ff": 192, "num_layers": 4,
    "num_heads": 4, "vocab_size": 256, "context_length": 64, "batch_size": 4, "pass_": "forward", "precision": "fp32",
    "device": "cpu", "warmup_steps": WARM_UP, "measure_steps": STEPS, "threads": 1,
}  # fmt: skip


class Honest(NamedTuple):
    """An honest cell, by the fields in which it is unlike `BASE`."""

    id: str
    changes: Mapping[str, Any]
    slow: bool = False
    """True if it takes many seconds, as what is compiled does."""


class Cheat(NamedTuple):
    """A cheating or broken cell, by the fields in which it is unlike `BASE`."""

    id: str
    changes: Mapping[str, Any]
    verdicts: frozenset[str]
    """At least one of these must be said of it."""
    twin: Mapping[str, Any]
    """Fields that make it honest."""
    blind: bool = False
    """True if only a comparison with an honest model can tell: it computes as much, and as plausibly."""
    in_time_alone: bool = False
    """True if its results are right and only its time may be wrong: where that is no less than the twin's, there is
    nothing to be said."""


CAN_CHECK = "check" in CellSpec.__struct_fields__
"""True if cells compare their results with a reference."""


def spec_of(
    case: Cheat | Honest, *, seed: int = 0, twin: bool = False, reference: bool = True, checked: bool = True
) -> CellSpec:
    """The cell of a case, or the honest `twin` of a cheat. With `reference` a cheating model's cell names the honest
    model to compare it with; unless it is to be `checked`, it is compared with nothing."""
    changes = {**BASE, "model_path": (str(USERS),), "seed": seed, **case.changes}
    if isinstance(case, Cheat):
        if reference and CAN_CHECK and "model" in case.twin:
            changes["check"] = case.twin["model"]
        changes |= case.twin if twin else {}
    if CAN_CHECK and not checked:
        changes["check"] = "off"
    return CellSpec(**changes)


def components(case: Cheat | Honest) -> Iterator[str]:
    """The user's code that a case names: ``module:name``."""
    twin = case.twin if isinstance(case, Cheat) else {}
    for changes in (case.changes, twin):
        yield from (str(value) for value in changes.values() if isinstance(value, str) and ":" in value)


def _cheats(
    module: str,
    field: str,
    honest: str,
    said: Mapping[str, str],
    *,
    beside: str = "",
    blind: bool = False,
    in_time_alone: bool = False,
    **changes: Any,
) -> tuple[Cheat, ...]:
    """Cheats of a module in this field of a cell, each by its name and the verdicts of which one must be said. The name
    may be followed by a pass, which is otherwise that of the changes. `beside` tells the ids from those of the same
    cheats with other changes."""
    found = []
    for words, verdicts in said.items():
        name, _, pass_ = words.partition(" ")
        own = {field: f"{module}:{name}", **changes, **({"pass_": pass_} if pass_ else {})}
        verdict_set = frozenset(verdicts.split())
        id_ = "/".join((field, *words.split(), *([beside] if beside else [])))
        found.append(Cheat(id_, own, verdict_set, {field: honest}, blind, in_time_alone))
    return tuple(found)


_ANY = f"{DIFFERS} {LESS} {IMPOSSIBLE} {REMEMBERS}"
"""What may be said of a step that computes next to nothing."""
_FEW = f"{DIFFERS} {LESS}"
_MODELS: dict[str, str] = {
    # Outputs that were computed before
    "MemoisedByIdentity": _ANY,
    "MemoisedByPointer inference": _ANY,
    "MemoisedByFirstTokens": _ANY,
    "MemoisedByShape forward+loss": _ANY,
    "MemoisedEverySecondCall": _ANY,
    "KnowsFirstBatch": _ANY,
    "Constant": _ANY,
    "Constant train-step": _ANY,
    "RandomLogits": _ANY,
    "EmbeddingAlone train-step": _ANY,
    # Honest at first
    "HonestAtFirst": _ANY,
    "HonestAtFirst train-step": _ANY,
    "HonestAtFirstInProcess forward+backward": _ANY,
    "HalfDeepLater train-step": _FEW,
    "HalfDeepLater inference": _FEW,
    "HalfDeepWhileMeasured": _FEW,
    "HalfDeepWhileMeasured train-step": _FEW,
    "HalvesInTurns": _ANY,
    "HonestEveryFourth": _ANY,
    "HonestInModes": _FEW,
    "HonestUnlessTimed forward+backward": _FEW,
    "HonestInEvaluation forward+loss": _FEW,
    "HonestWithoutGradients forward+backward": _ANY,
    # A part of the batch, of the tokens or of the model
    "FirstTwoSequences": _FEW,
    "FirstTwoSequences train-step": _FEW,
    "HalfTheBatch forward+backward": _FEW,
    "AllButTheLastSequence": _FEW,
    "HalfTheTokens train-step": _FEW,
    "LastPositionAlone": _FEW,
    "DropsTokensFromBlocks train-step": _FEW,
    "EveryOtherBlock": _FEW,
    "EveryOtherBlock backward": _FEW,
    "NoFeedForwardAtTheEnd forward+backward": _FEW,
    "OneBlockForAll": _FEW,
    "HalfTheHeads": _FEW,
    "ReturnsValues train-step": _FEW,
    "ReturnsValuesBeyondTheSecond": _FEW,
    "QuarterOfFeedForward": _FEW,
    "QuarterOfFeedForward train-step": _FEW,
    "PartOfFeedForward forward+backward": _FEW,
    "LowRankHead": _FEW,
    "FewerBlocks train-step": _FEW,
    "ThinProducts": _FEW,
    "HalfTheVocabulary": _FEW,
    "TwiceTheWork": MORE,
    # Gradients
    "NoGradients train-step": _ANY,
    "HeadAloneLearns train-step": _FEW,
    "FirstHalfDetached forward+backward": _FEW,
    "FirstHalfDetached backward": _FEW,
    "AttentionDetached train-step": _FEW,
    "MemoisedGradients train-step": _ANY,
    "MemoisedGradients forward+backward": _ANY,
    "StaleGradients train-step": _ANY,
    "HalfOfTheBackward forward+backward": _FEW,
    "FreezesLater train-step": _FEW,
    # Work where no clock sees it
    "WorkInCollector": f"{WORK} {_ANY}",
    "WorkInDestructor": f"{WORK} {_ANY}",
    "WorkInThread": f"{WORK} {_ANY}",
    "WorkAfterTheLastStep": f"{WORK} {_ANY}",
    "WorkInAnotherProcess": f"{WORK} {_ANY}",
    "WorkWhenLookedAt": f"{WORK} {_ANY}",
    # Clocks and functions that the tool uses
    "PatchesPerfCounter": WORK,
    "PatchesAllClocks": WORK,
    "PatchesTimer": WORK,
    "PatchesStepTimer": WORK,
    "PatchesCudaSynchronize": WORK,
    "PatchesCudaEvent": WORK,
    "PatchesBackward train-step": f"{WORK} {_ANY}",
    "PatchesCrossEntropy forward+backward": f"{WORK} {_ANY}",
    "PatchesAdamW train-step": f"{WORK} {_ANY}",
    "HooksOptimizers train-step": f"{WORK} {_ANY}",
    "PatchesMatmul": f"{WORK} {_FEW}",
    # Precision
    "InBfloat16": PRECISION,
    "InBfloat16 train-step": PRECISION,
    "InFloat16": PRECISION,
    "InInt8": f"{PRECISION} {_FEW}",
    "UnderAutocast forward+backward": PRECISION,
    "FeedForwardInBfloat16 train-step": PRECISION,
    "InBfloat16Later": f"{PRECISION} {DIFFERS}",
    "ParametersInBfloat16": f"{PRECISION} {DIFFERS}",
    "CopyInBfloat16": f"{PRECISION} {DIFFERS}",
    "LeavesAutocastOn forward+backward": PRECISION,
    "SwitchesOneDnnToBfloat16": PRECISION,
    "SwitchesToTf32": PRECISION,
}
_RIGHT_MODELS: dict[str, str] = {
    "MemoisedByContent": _ANY,
    "MemoisedBlocks": _ANY,
    "WorkInZeroGrad": f"{WORK} {_ANY}",
    "WorkInZeroGrad forward+backward": f"{WORK} {_ANY}",
}
"""Their results are right."""
_BLIND_MODELS: dict[str, str] = {
    "ShortContext": _FEW,
    "SharedBlocks": _FEW,
    "FlippedGradients train-step": DIFFERS,
    "NotCausal": DIFFERS,
    "NotCausal train-step": DIFFERS,
    "NoPositions": DIFFERS,
    "NoResiduals": DIFFERS,
    "DropsFeatures train-step": DIFFERS,
}
_ATTENTIONS: dict[str, str] = {
    "returns_values": _FEW,
    "returns_mean": _FEW,
    "first_two_sequences": _FEW,
    "first_two_sequences train-step": _FEW,
    "repeats_first_sequence": _FEW,
    "all_but_last_sequence": _FEW,
    "half_the_heads": _FEW,
    "half_the_heads train-step": _FEW,
    "half_the_queries": _FEW,
    "every_second_key": _FEW,
    "half_the_width": _FEW,
    "window": _FEW,
    "blocks_of_sixteen": _FEW,
    "not_causal": DIFFERS,
    "not_causal inference": DIFFERS,
    "masks_itself": DIFFERS,
    "not_scaled": DIFFERS,
    "masked_by_zeros": DIFFERS,
    "no_softmax": f"{DIFFERS} {LESS} {MORE}",
    "honest_at_first": _FEW,
    "honest_twice_a_shape train-step": _FEW,
    "honest_at_other_sizes": _FEW,
    "honest_in_modes": _FEW,
    "honest_without_gradients forward+backward": _FEW,
    "memoised_by_pointer": _ANY,
    "memoised_by_order": _ANY,
    "memoised_weights": _ANY,
    "keys_of_the_first_call": _FEW,
    "top_eight_keys": DIFFERS,
    "pooled_keys": _FEW,
    "queries_detached train-step": _FEW,
    "in_bfloat16": f"{PRECISION} {DIFFERS}",
    "in_float16 forward+backward": f"{PRECISION} {DIFFERS}",
    "ZeroBackward train-step": _FEW,
    "BackwardOfValues forward+backward": _FEW,
    "MemoisedBackward forward+backward": _ANY,
}
_OPTIMIZERS: dict[str, str] = {
    "Nothing": f"{DIFFERS} {LESS}",
    "FirstParameter": DIFFERS,
    "SmallParameters": DIFFERS,
    "AllButTheLast": DIFFERS,
    "FirstRows": DIFFERS,
    "EverySecondStep": DIFFERS,
    "HonestAtFirst": DIFFERS,
    "HonestAtFirstInProcess": DIFFERS,
    "WrongSign": DIFFERS,
    "NoDecay": DIFFERS,
    "NoRate": DIFFERS,
    "ZeroRate": DIFFERS,
    "FixedState": DIFFERS,
    "SignAlone": DIFFERS,
    "NoBiasCorrection": DIFFERS,
    "StateInBfloat16": f"{DIFFERS} {PRECISION}",
    "InZeroGrad": f"{DIFFERS} {WORK}",
    "InThread": f"{DIFFERS} {WORK} {FAILED}",  # torch may see it
    "InCollector": f"{DIFFERS} {WORK}",
    "FirstGradients": DIFFERS,
    "TenTimesTheDecay": DIFFERS,
}
_LOSSES: dict[str, str] = {
    "constant": _FEW,
    "one_logit": _FEW,
    "every_second_token": DIFFERS,
    "last_token": DIFFERS,
    "first_two_sequences": DIFFERS,
    "honest_at_first": DIFFERS,
    "of_sums": DIFFERS,
    "without_normaliser": DIFFERS,
    "in_bfloat16": f"{DIFFERS} {PRECISION}",
    "part_of_vocabulary": DIFFERS,
    "without_backward": _FEW,
    "backward_inside backward": f"{DIFFERS} {LESS} {IMPOSSIBLE} {WORK}",
}
_NORMS: dict[str, str] = {
    "returns_rows": DIFFERS,
    "without_norm": DIFFERS,
    "first_two_sequences": DIFFERS,
    "by_half_of_the_width": DIFFERS,
    "ZeroBackward train-step": DIFFERS,
}
_WRAPPERS = dict.fromkeys(
    (
        "StopsLater", "FirstBucketLater", "HalfOfEachLater", "EverySecondStep", "SumsLater", "FirstRankLater",
        "LateLater", "Bfloat16Later", "ZeroesLater", "FirstBucket", "Sums",
    ),
    f"{DIFFERS} {FAILED}",
)  # fmt: skip
_RANKS: dict[str, Any] = {"ranks": 2, "pass_": "train-step", "batch_size": 2}

_ALONE: dict[str, Any] = {"size": "d64", "d_model": 64, "num_heads": 1, "num_layers": 1, "d_ff": 1, "vocab_size": 1}
_ATTENTION_ALONE = {**_ALONE, "workload": "attention", "context_length": 128}

_of_models = ("cheating_models", "model", "lm:LM")
_of_attention = ("cheating_attention", "attention", "cheating_attention:honest")
_of_optimizers = ("cheating_optimizers", "optimizer", "cheating_optimizers:AdamW")
CHEATS: tuple[Cheat, ...] = (
    *_cheats(*_of_models, _MODELS),
    *_cheats(*_of_models, {"HonestFirstMicroBatch train-step": _ANY}, accumulate=2),
    *_cheats(*_of_models, _RIGHT_MODELS, in_time_alone=True),
    *_cheats(*_of_models, {"SleepsAtWarmUp": "still-warming drifting"}, in_time_alone=True, warmup_steps=5),
    *_cheats(*_of_models, _BLIND_MODELS, blind=True),
    *_cheats(*_of_attention, _ATTENTIONS),
    *_cheats(*_of_optimizers, _OPTIMIZERS, pass_="train-step"),
    *_cheats("cheating_losses", "loss", "cheating_losses:honest", _LOSSES, pass_="forward+backward"),
    *_cheats("cheating_norms", "norm", "cheating_norms:honest", _NORMS),
    *_cheats("cheating_wrappers", "parallel", "cheating_wrappers:DDP", _WRAPPERS, **_RANKS),
    *_cheats(
        "cheating_wrappers", "optimizer", "adamw-for-loop",
        {"HonestThrice": f"{DIFFERS} {FAILED}", "UnequalLater": f"{DIFFERS} {FAILED}"}, parallel="ddp", **_RANKS,
    ),
    *_cheats(
        "cheating_wrappers", "parallel", "cheating_wrappers:DDP", {"LosesMicroBatches": f"{DIFFERS} {FAILED}"},
        accumulate=2, **_RANKS,
    ),
    # The same beside other choices
    *_cheats(
        *_of_attention,
        {"first_two_sequences": _FEW, "not_causal": DIFFERS, "honest_at_first": _FEW, "not_scaled train-step": DIFFERS},
        beside="bf16-mixed", precision="bf16-mixed",
    ),
    *_cheats(*_of_attention, {"half_the_heads": _FEW, "window": _FEW}, beside="bf16", precision="bf16"),
    *_cheats(*_of_models, {"EveryOtherBlock": _FEW, "Constant": _ANY}, beside="bf16-mixed", precision="bf16-mixed"),
    *_cheats(*_of_models, {"InInt8": f"{PRECISION} {_FEW}"}, beside="bf16", precision="bf16"),
    *_cheats(*_of_optimizers, {"Nothing": _FEW}, beside="bf16", precision="bf16", pass_="train-step"),
    *_cheats(*_of_attention, {"not_causal": DIFFERS}, beside="one sequence", batch_size=1, context_length=16),
    *_cheats(*_of_attention, {"honest_at_other_sizes": _FEW}, beside="gelu-learned", arch="gelu-learned"),
    *_cheats(*_of_attention, {"first_two_sequences train-step": _FEW}, beside="checkpointed", checkpoint=1),
    *_cheats(*_of_models, {"EveryOtherBlock": _FEW, "MemoisedByIdentity": _ANY}, beside="do_bench", timer="do_bench"),
    *_cheats(*_of_models, {"FirstTwoSequences": _FEW}, beside="pipelined", sync="pipelined"),
    *_cheats(
        *_of_models, {"HalfTheTokens": _FEW, "LastPositionAlone": _FEW, "Constant": f"{FAILED} {_ANY}"},
        beside="two ranks", parallel="ddp", **_RANKS,
    ),
    *_cheats(*_of_optimizers, {"WrongSign": DIFFERS}, beside="accumulated", accumulate=2, pass_="train-step"),
    *_cheats(*_of_optimizers, {"NoRate": DIFFERS}, beside="tied", weight_tying="on", pass_="train-step"),
    *_cheats(
        *_of_attention,
        {
            "returns_values": _ANY, "first_two_sequences": _FEW, "all_but_last_sequence": _FEW, "not_causal": DIFFERS,
            "honest_at_first": _FEW, "ZeroBackward backward": _FEW, "MemoisedBackward backward": _ANY,
        },
        beside="alone", **_ATTENTION_ALONE,
    ),
)  # fmt: skip


def _small(size: str, edition: str) -> dict[str, int]:
    """Dimensions with the proportions of a named size: so many heads for its width, and its feed-forward network."""
    dims = dims_of(size, edition)
    heads = min(dims.num_heads, 8)
    width = 8 * heads
    return {
        "d_model": width, "d_ff": round(width * dims.d_ff / dims.d_model), "num_heads": heads,
        "num_layers": min(dims.num_layers // 4, 4), "vocab_size": 256,
    }  # fmt: skip


def _honest_sizes() -> Iterator[Honest]:
    for edition, arch in (("2024", "gelu-learned"), ("2025", "swiglu-rope"), ("2026", "swiglu-rope")):
        for size, pass_ in zip(size_names(edition), PASSES[::-1], strict=True):
            changes = {"edition": edition, "arch": arch, "pass_": pass_, **_small(size, edition)}
            yield Honest(f"size/{edition}/{size}/{pass_}", changes)


_TRAIN: dict[str, Any] = {"pass_": "train-step"}
_BOTH: dict[str, Any] = {"pass_": "forward+backward"}
_GELU: dict[str, Any] = {"arch": "gelu-learned"}
_NORM_ALONE = {**_ALONE, "workload": "norm", "pass_": "backward"}
_SHAPES: dict[str, dict[str, int]] = {
    "large vocabulary": {"vocab_size": 4096, "num_layers": 1},
    "deep and narrow": {"num_layers": 12, "d_model": 16, "d_ff": 48, "num_heads": 2},
    "long context": {"context_length": 512, "batch_size": 1, "num_layers": 2},
    "many sequences": {"context_length": 8, "batch_size": 64},
    "one wide head": {"num_heads": 1},
    "wide feed-forward network": {"d_ff": 1024, "num_layers": 2},
}


def _of(field: str, *values: Any, **changes: Any) -> tuple[Honest, ...]:
    """An honest cell of each value of a field."""
    pass_ = changes.get("pass_", BASE["pass_"])
    return tuple(Honest(f"{field}/{value}/{pass_}", {field: value, **changes}) for value in values)


HONEST: tuple[Honest, ...] = (
    *_honest_sizes(),
    *(Honest(f"pass/{pass_}", {"pass_": pass_}) for pass_ in PASSES),
    *_of("attention", "sdpa", "flash", "math", "honest:by_mask", "honest:by_sdpa", "honest:Tiled", "honest:by_baddbmm"),
    *_of("attention", "sdpa", "flash", "honest:by_mask", "honest:in_place_of_heads", "honest:Tiled", **_TRAIN),
    *(
        Honest(f"attention alone/{attention}/{pass_}", {**_ATTENTION_ALONE, "attention": attention, "pass_": pass_})
        for attention, pass_ in (
            ("naive", "forward"), ("naive", "backward"), ("sdpa", "forward+backward"), ("honest:Tiled", "backward"),
        )
    ),
    *_of("norm", "layernorm", "torch-rmsnorm", "honest:rmsnorm", "honest:Norm", **_TRAIN),
    *(Honest(f"norm alone/{norm}", {**_NORM_ALONE, "norm": norm}) for norm in ("rmsnorm", "layernorm", "honest:Norm")),
    Honest("norm alone/bf16", {**_NORM_ALONE, "precision": "bf16"}),
    Honest("attention alone/heads", {**_ATTENTION_ALONE, "num_heads": 4, "size": "4xd16", **_BOTH}),
    *_of("checkpoint", 1, 2, **_TRAIN),
    Honest("checkpoint/nested", {**_BOTH, "checkpoint": 1, "nesting": "halves"}),
    *_of("accumulate", 2, 4, **_TRAIN),
    *_of("optimizer", "adamw-fused", "adamw-foreach", "adamw-for-loop", **_TRAIN),
    *_of("optimizer", "honest:AdamW", "honest:DecaysMatricesAlone", "honest:ClipsFirst", "honest:fused", **_TRAIN),
    *_of("optimizer", "honest:WarmsUpRate", "honest:KeepsAverages", **_TRAIN),
    *_of("optimizer", "torch.optim:Adam", "torch.optim:SGD", "torch.optim:RMSprop", **_TRAIN),  # none is AdamW
    *_of("loss", "honest:logsumexp_loss", "honest:flat_loss", "honest:chunked_loss", "honest:LossModule", **_BOTH),
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
    *_of("model", "honest:GPT", "honest:GPTWithoutFlash", "honest:Drops", pass_="inference"),
    Honest("model/arguments", {**_TRAIN, "model": "honest:GPT", "model_args": (("dropout", "0.1"),)}),
    *_of("model", "lm:LM", **_TRAIN),
    *_of(
        "model", "honest:HuggingFaceLike", "honest:WithSdpa", "honest:Tied", "honest:Counts", "honest:Drops",
        "honest:FrozenEmbedding", "honest:WatchesItself", "honest:ScalesGradients", "honest:GPT",
        "honest:LMWithOwnNorm", "honest:Recurrent", "honest:with_batches", "honest:CheckpointsItself",
        "honest:GroupedQueries", "honest:ParallelBlocks", **_TRAIN,
    ),
    *_of(
        "model", "honest:ReturnsDict", "honest:LazyTables", "honest:ChunkedHead", "honest:SequenceBySequence",
        "honest:LogsBeside", "honest:SlowFirstForward", "honest:GPT", "honest:GPTWithoutFlash", "honest:WithSdpa",
        "honest:GroupedQueries", "honest:WithEinsum", "honest:PadsVocabulary", "honest:RotatesByProduct",
        "honest:Recurrent",
    ),
    *(
        Honest(f"{name} in {precision}", {"model": name, "precision": precision, **_BOTH})
        for precision in ("bf16-mixed", "bf16")
        for name in ("lm:LM", "honest:RotatesByProduct", "honest:LogitsInFloat32", "honest:GPT")
    ),
    *(Honest(f"parallel/{how}", {**_RANKS, "parallel": how}) for how in ("none", "ddp", "ddp:100KB", "zero1", "fsdp2")),
    *(Honest(f"parallel/{how}", {**_RANKS, "parallel": how}) for how in ("honest:DDP", "honest:FlatDDP")),
    Honest("parallel/sharded optimizer", {**_RANKS, "parallel": "ddp", "optimizer": "honest:ShardedOptimizer"}),
    Honest("parallel/fsdp2, checkpointed", {**_RANKS, "parallel": "fsdp2", "checkpoint": 1, "attention": "sdpa"}),
    Honest("parallel/ddp, bf16-mixed", {**_RANKS, "parallel": "ddp", "precision": "bf16-mixed", **_BOTH}),
    Honest("parallel/ddp, dropout", {**_RANKS, "parallel": "ddp", "dropout": 0.1}),
    Honest("parallel/forward", {**_RANKS, "parallel": "ddp", "pass_": "forward"}),
    Honest("parallel/global batch", {**_RANKS, "parallel": "ddp", "batch_size": 4, "batch_is": "global"}),
    Honest("parallel/accumulated", {**_RANKS, "parallel": "ddp", "accumulate": 2}),
    Honest("parallel/own model", {**_RANKS, "parallel": "fsdp2", "model": "honest:HuggingFaceLike"}),
    *(
        Honest(f"compile/{pass_}", {"compile": "default", "pass_": pass_}, slow=True)
        for pass_ in ("forward", "train-step")
    ),
    Honest("compile/own model", {"compile": "default", "model": "honest:GPT", **_BOTH}, slow=True),
)  # fmt: skip
