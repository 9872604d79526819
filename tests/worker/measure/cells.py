"""Small cells run in this process, and their reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, Event, ModelBuilt, StageChanged, StepsTimed
from cs336_tui.worker.measure.cell import run_cell
from tests import watching

multiplies_float8 = pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU"),
    reason="this torch multiplies in float8 on CUDA alone",
)


def small_spec(**changes: Any) -> CellSpec:
    """A cell that takes milliseconds on a CPU, with `changes`."""
    fields: dict[str, Any] = {
        "d_model": 16,
        "d_ff": 24,
        "num_layers": 2,
        "vocab_size": 40,
        "batch_size": 2,
        "pass_": "forward+backward",
        "warmup_steps": 2,
    }
    return watching.small_spec(**(fields | changes))


PLAIN = """
import sys
import weakref

import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.head = nn.Linear(d_model, vocab_size)
        self.calls = 0

    def forward(self, tokens):
        return self.head(self.embedding(tokens).sin())
"""
"""The begin of a user's file: a model that others in the file inherit from."""


@dataclass
class Report:
    """The events of one cell, with queries for tests."""

    events: list[Event]

    @property
    def finished(self) -> CellFinished:
        last = self.events[-1]
        assert isinstance(last, CellFinished)
        return last

    @property
    def built(self) -> ModelBuilt:
        (built,) = (event for event in self.events if isinstance(event, ModelBuilt))
        return built

    @property
    def outline(self) -> list[str]:
        """Stages by name, every other event by type."""
        return [event.stage if isinstance(event, StageChanged) else type(event).__name__ for event in self.events]

    def steps(self, kind: str) -> list[StepsTimed]:
        return [event for event in self.events if isinstance(event, StepsTimed) and event.kind == kind]

    def times_s(self, kind: str = "measured") -> list[float]:
        return [time for event in self.steps(kind) for time in event.times_s]

    def phase_s(self, phase: str, kind: str = "measured") -> list[float]:
        return [time for event in self.steps(kind) for time in event.phases_s[phase]]


def run(
    spec: CellSpec,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    watch: Callable[[Event], None] = lambda _event: None,
) -> Report:
    """Run the cell here; `watch` sees each event as it is emitted."""
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        watch(event)

    run_cell(spec, 7, emit, cancelled)
    return Report(events)
