"""A user's own model from its name: imported, given the dimensions by name, made on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from cs336_tui.spec import RunSpec
from cs336_tui.workload.batch import Batch


class ImportedModel(NamedTuple):
    """A user's model on its device; `batch` where the user makes that too. `revision` says what the source was."""

    model: nn.Module
    batch: Batch | None
    revision: str


def import_model(spec: RunSpec, device: torch.device, dtype: torch.dtype) -> ImportedModel:
    """Raises `ImportProblem`, in one line with the user's own frame, for whatever goes wrong on the way."""
    raise NotImplementedError
