"""What is known of a model once it is there, the reference's or a user's own."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.worker.workload.attention_only import AttentionOnly
from cs336_tui.worker.workload.transformer import Transformer


class ModelFacts(NamedTuple):
    """`attention` says in words how it is computed, as far as is known; `revision` of which source the user's own
    code is, None where there is none; `remarks` what is to be known beside the numbers of a cell that runs it."""

    num_params: int
    num_params_without_head: int
    attention: str
    revision: str | None = None
    remarks: tuple[str, ...] = ()


def facts_of(
    model: nn.Module, spec: CellSpec, revision: str | None = None, not_taken: tuple[str, ...] = ()
) -> ModelFacts:
    """Of a model that was made for this spec, `not_taken` being the dimensions that it did not ask for."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    if isinstance(model, Transformer):
        return ModelFacts(numbers, model.num_params_without_head, model.attention_method, revision)
    if isinstance(model, AttentionOnly):
        return ModelFacts(numbers, numbers, model.attention_method, revision)
    head = _head(model, spec)
    without_head = numbers - (head.numel() if head is not None else 0)
    remarks = (_of_its_own(spec, not_taken),) if not_taken else ()
    return ModelFacts(numbers, without_head, f"{short(spec.model)}'s own", revision, remarks)


def _of_its_own(spec: CellSpec, fields: tuple[str, ...]) -> str:
    said = ", ".join(f"{field} {getattr(spec, field)}" for field in fields)
    return f"{short(spec.model)} does not take {', '.join(fields)}: it has its own, whatever labels say ({said})"


def _head(model: nn.Module, spec: CellSpec) -> nn.Parameter | None:
    """The weight that makes logits: of the vocabulary's and the model's width, the last such that was registered, and
    no other part's too; None where there is none."""
    shapes = {(spec.vocab_size, spec.d_model), (spec.d_model, spec.vocab_size)}
    found = [parameter for parameter in model.parameters() if tuple(parameter.shape) in shapes]
    return found[-1] if len(found) > 1 else None
