"""The kinds of reports on cells, with their commands and tabs, and the request of one. A child process of its own makes
each, never while a cell is timed; `cs336_tui.analysis` derives tables."""

from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import AskedReport
from cs336_tui.events.agreement_report import AgreementReport
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.memory_report import MemoryReport, OomReport, RankMemoryReport
from cs336_tui.events.precision_report import PrecisionReport

ReportKind = AskedReport | Literal["rank-memory", "oom", "agreement"]
Report = KernelReport | MemoryReport | RankMemoryReport | PrecisionReport | OomReport | AgreementReport


class ReportType(msgspec.Struct, frozen=True):
    """A kind of report, for commands, tabs and exports."""

    title: str
    """Of its tables in a session's summary."""
    tab: str
    """The tab that shows it."""
    content: type[Report] | None = None
    """Made by a child process (`worker.measure.report`). None: worked out from the cells (`export.reports`)."""
    command: str = ""
    """One line about the command that makes it. Empty: no command and no key does."""
    passes: tuple[str, ...] = ("train-step",)
    """That the command looks at if no pass is named."""


REPORTS: Mapping[str, ReportType] = {
    "race": ReportType("Race", "race"),
    "ab": ReportType("Two cells in turns", "compare"),
    "predictions": ReportType("Predictions", "estimate"),
    "kernels": ReportType(
        "Kernels", "kernels", KernelReport, "Profile one step: kernels by time, kind, phase and part of the model."
    ),
    "kernels-over-cells": ReportType("Kernels over cells", "kernels"),
    "memory": ReportType(
        "Memory",
        "memory",
        MemoryReport,
        "Record one step: memory by category, and the lines that allocated it.",
        ("forward", "train-step"),
    ),
    "rank-memory": ReportType(
        "Memory of each rank",
        "memory",
        RankMemoryReport,
    ),
    "precision": ReportType(
        "Precision",
        "precision",
        PrecisionReport,
        "dtypes in the model (by hooks) and in a toy model, and accumulation error.",
    ),
    "mixed-precision": ReportType("Mixed precision", "precision"),
    "roofline": ReportType("How close to the limit", "roofline"),
    "oom": ReportType("Out of memory", "memory", OomReport),
    "agreement": ReportType("Same logits and gradients", "race", AgreementReport),
}
"""Every report, by the key that `export --report` takes, in the order in which a summary has them."""
ASKED_FOR: tuple[ReportKind, ...] = tuple(cast(ReportKind, key) for key, type_ in REPORTS.items() if type_.command)
"""The reports that a command and a key of their tab make."""


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a report. `folder` is for its files; None: it leaves none."""

    kind: ReportKind
    spec: CellSpec
    cell: int | None = None
    """The session's cell that it is about, if there is one."""
    folder: str | None = None
    capacity_bytes: int | None = None
    failed_phase: str | None = None
    failed_request_bytes: int | None = None
    """As the cell reported it, for `oom`, with the device's capacity."""
