"""The finished cells of sessions for other programs: JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from cs336_tui.analysis.fields import OWN, shown_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import InForce
from cs336_tui.export.record import RECORD_SCHEMA, RunRecord, SessionDocument, document_of
from cs336_tui.export.texts import as_data, plain
from cs336_tui.session.state import SessionState
from cs336_tui.stats.summaries import Summary

_FIRST = ("cell", "status")
_BY_PHASE = ("phase_times_s", "host_phase_times_s")
_NESTED = ("spec", "summary", "in_force", *_BY_PHASE)
_TEXTS = ("verdict_evidence", "verdict_advice")
"""Texts by name; ``name: text`` in CSV."""
_PAIRS = ("model_args", "annotations")
"""Pairs of a name and its value; ``name=value`` in CSV."""
_OF_MODEL = ("edition", "arch", "attention")
"""What a user's model may decide itself."""
_MACHINE = ("host", "app", "python", "torch", "cuda", "driver")
_COLUMNS = (
    *_FIRST,
    *CellSpec.__struct_encode_fields__,
    *Summary.__struct_encode_fields__,
    *(name for name in RunRecord.__struct_encode_fields__ if name not in (*_FIRST, *_NESTED, "environment")),
    *(f"in_force_{name}" for name in InForce.__struct_encode_fields__),
    *_MACHINE,
)


def to_json(state: SessionState) -> str:
    """The session as ``{"schema": 1, "environment": {...}, "runs": [...]}``; what is unknown is null, never NaN."""
    return documents_to_json([document_of(state)])


def to_csv(state: SessionState) -> str:
    """One row per finished cell, fields named as in the JSON; times in seconds, sizes in bytes.

    Lists (``*_times_s``, of a value per step, verdicts, and texts such as ``verdict_evidence`` and ``graph_breaks``)
    are joined by ``;``; one inside a text is ``,``, so that a reader can split them. A text that a spreadsheet would
    take for a formula has an apostrophe before it (`as_data`). What is unknown is empty; what a model of the user's
    decides itself, such as its attention, is ``own``.
    """
    return documents_to_csv([document_of(state)])


def documents_to_json(documents: Sequence[SessionDocument]) -> str:
    """One session as its document, several as ``{"schema": 1, "sessions": [...]}``."""
    found: Any = documents[0] if len(documents) == 1 else {"schema": RECORD_SCHEMA, "sessions": documents}
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def documents_to_csv(documents: Sequence[SessionDocument]) -> str:
    """As `to_csv`; the rows of several sessions begin with the session's id."""
    first = ("session",) if len(documents) > 1 else ()
    rows = [
        dict.fromkeys(first, document.session or "") | _row(run) | _machine(document, run)
        for document in documents
        for run in document.runs
    ]
    phases = dict.fromkeys(
        _phase_column(field, phase)
        for field in _BY_PHASE
        for document in documents
        for run in document.runs
        for phase in getattr(run, field)
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, (*first, *_COLUMNS, *phases), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _machine(document: SessionDocument, run: RunRecord) -> dict[str, Any]:
    """The machine that the cell ran on; the session's where that was not noted."""
    environment = document.environment if run.environment is None else document.environments[run.environment]
    return {name: _field(getattr(environment, name, None)) for name in _MACHINE}


def _row(run: RunRecord) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(run)
    spec, summary, in_force, *by_phase = (row.pop(name) for name in _NESTED)
    del row["environment"]
    row |= {name: [f"{of}: {text}" for of, text in row[name].items()] for name in _TEXTS}
    row |= spec | (summary or {}) | {name: OWN for name in _OF_MODEL if shown_of(run.spec, name) == OWN}
    row |= {name: [f"{of}={value}" for of, value in spec[name]] for name in _PAIRS}
    row |= {f"in_force_{name}": value for name, value in (in_force or {}).items()}
    for field, phases in zip(_BY_PHASE, by_phase, strict=True):
        row |= {_phase_column(field, phase): times for phase, times in phases.items()}
    return {name: _field(value) for name, value in row.items()}


def _field(value: Any) -> Any:
    if isinstance(value, list | tuple):
        texts = [each.replace(";", ",") if isinstance(each, str) else repr(each) for each in value]
        joined = ";".join(texts)
        return as_data(joined) if any(isinstance(each, str) for each in value) else joined
    # Older Pythons leave a bare carriage return unquoted, and then cannot read the row back.
    return as_data(value) if isinstance(value, str) else value


def _phase_column(field: str, phase: str) -> str:
    """``phase_forward_times_s``, ``host_phase_forward_times_s``."""
    return field.replace("times_s", f"{plain(phase)}_times_s")
