"""What all cells of a table share, for CSV: so that files of several models can stand in one."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.analysis.fields import FIELDS
from cs336_tui.analysis.merge import Result
from cs336_tui.export.results import data_value
from cs336_tui.export.tables import Value

_SETTINGS = ("size", "context", "batch", "pass", "precision", "device", "warmup")


def settings_of(results: Sequence[Result], named: Sequence[str]) -> dict[str, Value]:
    """The settings that are not `named`, and variants, as the roofline's records call them; None where cells differ."""
    found: dict[str, Value] = {key: _shared(results, key) for key in _SETTINGS if key not in named}
    return found | {"variants": ", ".join(_variants(results))}


def _shared(results: Sequence[Result], key: str) -> Value:
    shown = {FIELDS[key].show(result) for result in results}
    return data_value(key, shown.pop()) if len(shown) == 1 else None


def _variants(results: Sequence[Result]) -> list[str]:
    """Those that every cell is in."""
    each = [result.spec.variants for result in results]
    return [variant for variant in dict.fromkeys(sum(each, ())) if all(variant in some for some in each)]
