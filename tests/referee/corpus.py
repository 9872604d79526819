"""Cells that cheat, each with what must be said of it; `honest_cells` has those of which no doubt may be said.

Both are named as users name their code: the components lie in `USERS`, which is the cells' model path. Dimensions are
small, so that a cell of one rank takes a fraction of a second, and large enough that a step which computes nothing is
faster than any processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cs336_tui.config.spec import CellSpec

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
    "device": "cpu", "warmup_steps": WARM_UP, "measure_steps": STEPS, "threads": 1, "check": "auto",
}  # fmt: skip


class Honest(NamedTuple):
    """An honest cell, by the fields in which it is unlike `BASE`."""

    id: str
    changes: Mapping[str, Any]
    slow: bool = False
    """True if it takes many seconds, as what is compiled does."""
    verdicts: frozenset[str] = frozenset()
    blind: bool = False


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
"""Verdicts that may be said of a step that computes next to nothing."""
_FEW = f"{DIFFERS} {LESS}"
_MEMORY: dict[str, str] = {
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
    "HonestAtFirst": _ANY,
    "HonestAtFirst train-step": _ANY,
    "HonestAtFirstInProcess forward+backward": _ANY,
    "HalfDeepLater train-step": _FEW,
    "HalfDeepLater inference": _FEW,
    "HalfDeepWhileMeasured": _FEW,
    "HalfDeepWhileMeasured train-step": _FEW,
    "OneBlockLessWhileMeasured": _FEW,
    "OneBlockLessWhileMeasured forward+backward": _FEW,
    "HalvesInTurns": _ANY,
    "HonestEveryFourth": _ANY,
    "HonestInModes": _FEW,
    "HonestUnlessTimed forward+backward": _FEW,
    "HonestInEvaluation forward+loss": _FEW,
    "HonestWithoutGradients forward+backward": _ANY,
}
_PARTS: dict[str, str] = {
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
    "HonestAlone": _FEW,
    "HonestAlone train-step": _FEW,
    "DrawsAndSkips": _FEW,
    "DetachedBehindFunction train-step": _FEW,
    "TwiceTheWork": MORE,
}
_GRADIENTS: dict[str, str] = {
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
    "HalfOfTheWeightGradients train-step": _FEW,
}
_CLOCKS: dict[str, str] = {
    "WorkInCollector": f"{WORK} {_ANY}",
    "WorkInDestructor": f"{WORK} {_ANY}",
    "WorkInThread": f"{WORK} {_ANY}",
    "WorkAfterTheLastStep": f"{WORK} {_ANY}",
    "WorkInAnotherProcess": f"{WORK} {_ANY}",
    "WorkWhenLookedAt": f"{WORK} {_ANY}",
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
    "PatchesActivation": f"{WORK} {DIFFERS}",
    "PatchesMask": f"{WORK} {DIFFERS}",
    "PatchesModule": f"{WORK} {DIFFERS}",
}
_PRECISION: dict[str, str] = {
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
_BROKEN: dict[str, str] = {
    "ShortContext": _FEW,
    "SharedBlocks": _FEW,
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
    "OneElement": DIFFERS,
    "SmallParameters": DIFFERS,
    "AllButTheLast": DIFFERS,
    "FirstRows": DIFFERS,
    "EverySecondStep": DIFFERS,
    "EveryFourthStep": DIFFERS,
    "MatricesEveryFourthStep": DIFFERS,
    "NoneWhileMeasured": DIFFERS,
    "LeftColumns": DIFFERS,
    "ClearsAndStays": DIFFERS,
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
    "smoothed_every_second_token": DIFFERS,
    "smoothed_at_first": DIFFERS,
    "smoothed_of_leaves": DIFFERS,
    "z_loss_of_half": DIFFERS,
    "most_of_vocabulary": DIFFERS,
    "of_no_value": DIFFERS,
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
RANKS: dict[str, Any] = {"ranks": 2, "pass_": "train-step", "batch_size": 2}
ALONE: dict[str, Any] = {"size": "d64", "d_model": 64, "num_heads": 1, "num_layers": 1, "d_ff": 1, "vocab_size": 1}
ATTENTION_ALONE = {**ALONE, "workload": "attention", "context_length": 128}

_of_models = ("cheating_models", "model", "lm:LM")
_of_memory = ("cheating_memory", "model", "lm:LM")
_of_gradients = ("cheating_gradients", "model", "lm:LM")
_of_clocks = ("cheating_clocks", "model", "lm:LM")
_of_precision = ("cheating_precision", "model", "lm:LM")
_of_attention = ("cheating_attention", "attention", "cheating_attention:honest")
_of_optimizers = ("cheating_optimizers", "optimizer", "cheating_optimizers:AdamW")
CHEATS: tuple[Cheat, ...] = (
    *_cheats(*_of_memory, _MEMORY),
    *_cheats(*_of_memory, {"MemoisedByContent": _ANY, "MemoisedBlocks": _ANY}, in_time_alone=True),
    *_cheats(*_of_memory, {"HonestFirstMicroBatch train-step": _ANY}, accumulate=2),
    *_cheats(*_of_models, _PARTS),
    *_cheats(*_of_models, _BROKEN, blind=True),
    *_cheats(*_of_gradients, _GRADIENTS),
    *_cheats(*_of_gradients, {"FlippedGradients train-step": DIFFERS}, blind=True),
    *_cheats(*_of_clocks, _CLOCKS),
    *_cheats(
        *_of_clocks,
        {"WorkInZeroGrad": f"{WORK} {_ANY}", "WorkInZeroGrad forward+backward": f"{WORK} {_ANY}"},
        in_time_alone=True,
    ),
    *_cheats(*_of_clocks, {"SleepsAtWarmUp": "still-warming drifting"}, in_time_alone=True, warmup_steps=5),
    *_cheats(*_of_precision, _PRECISION),
    *_cheats(*_of_attention, _ATTENTIONS),
    *_cheats(*_of_optimizers, _OPTIMIZERS, pass_="train-step"),
    *_cheats("cheating_losses", "loss", "cheating_losses:honest", _LOSSES, pass_="forward+backward"),
    *_cheats("cheating_norms", "norm", "cheating_norms:honest", _NORMS),
    *_cheats("cheating_wrappers", "parallel", "cheating_wrappers:DDP", _WRAPPERS, **RANKS),
    *_cheats(
        "cheating_wrappers", "optimizer", "adamw-for-loop",
        {"HonestThrice": f"{DIFFERS} {FAILED}", "UnequalLater": f"{DIFFERS} {FAILED}"}, parallel="ddp", **RANKS,
    ),
    *_cheats(
        "cheating_wrappers", "parallel", "cheating_wrappers:DDP", {"LosesMicroBatches": f"{DIFFERS} {FAILED}"},
        accumulate=2, **RANKS,
    ),
    # The same beside other choices
    *_cheats(
        *_of_attention,
        {"first_two_sequences": _FEW, "not_causal": DIFFERS, "honest_at_first": _FEW, "not_scaled train-step": DIFFERS},
        beside="bf16-mixed", precision="bf16-mixed",
    ),
    *_cheats(*_of_attention, {"half_the_heads": _FEW, "window": _FEW}, beside="bf16", precision="bf16"),
    *_cheats(*_of_models, {"EveryOtherBlock": _FEW}, beside="bf16-mixed", precision="bf16-mixed"),
    *_cheats(*_of_memory, {"Constant": _ANY}, beside="bf16-mixed", precision="bf16-mixed"),
    *_cheats(*_of_precision, {"InInt8": f"{PRECISION} {_FEW}"}, beside="bf16", precision="bf16"),
    *_cheats(*_of_optimizers, {"Nothing": _FEW}, beside="bf16", precision="bf16", pass_="train-step"),
    *_cheats(*_of_attention, {"not_causal": DIFFERS}, beside="one sequence", batch_size=1, context_length=16),
    *_cheats(*_of_attention, {"honest_at_other_sizes": _FEW}, beside="gelu-learned", arch="gelu-learned"),
    *_cheats(*_of_attention, {"first_two_sequences train-step": _FEW}, beside="checkpointed", checkpoint=1),
    *_cheats(*_of_models, {"EveryOtherBlock": _FEW}, beside="do_bench", timer="do_bench"),
    *_cheats(*_of_memory, {"MemoisedByIdentity": _ANY}, beside="do_bench", timer="do_bench"),
    *_cheats(*_of_models, {"FirstTwoSequences": _FEW}, beside="pipelined", sync="pipelined"),
    *_cheats(
        *_of_models, {"HalfTheTokens": _FEW, "LastPositionAlone": _FEW},
        beside="two ranks", parallel="ddp", **RANKS,
    ),
    *_cheats(*_of_memory, {"Constant": f"{FAILED} {_ANY}"}, beside="two ranks", parallel="ddp", **RANKS),
    *_cheats(*_of_optimizers, {"WrongSign": DIFFERS}, beside="accumulated", accumulate=2, pass_="train-step"),
    *_cheats(*_of_optimizers, {"NoRate": DIFFERS}, beside="tied", weight_tying="on", pass_="train-step"),
    *_cheats(
        *_of_attention,
        {
            "returns_values": _ANY, "first_two_sequences": _FEW, "all_but_last_sequence": _FEW, "not_causal": DIFFERS,
            "honest_at_first": _FEW, "ZeroBackward backward": _FEW, "MemoisedBackward backward": _ANY,
        },
        beside="alone", **ATTENTION_ALONE,
    ),
)  # fmt: skip
