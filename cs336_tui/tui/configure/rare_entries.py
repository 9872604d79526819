"""The entries that are seldom changed: raw dimensions, and the fold of all that is left."""

from __future__ import annotations

from collections.abc import Iterable

from cs336_tui.config.spec import ARCHES, EDITIONS, SYNCS
from cs336_tui.tui.configure.form import AFTER_OOM, DIMS, Entries
from cs336_tui.tui.widgets.entries import Chip, Chips, Entry, TextEntry

MORE = ("edition", "arch", "sync", "seed", "threads", "ddof", "timeout_s", "repeats", "after_oom")
"""Fields of the fold."""
_LABELS = {"num_layers": "layers", "num_heads": "heads", "vocab_size": "vocab"}


def chips_of(values: Iterable[str], labels: dict[str, str] | None = None) -> tuple[Chip, ...]:
    """A chip for each value, labelled with itself where `labels` has no other word."""
    return tuple(Chip(value, (labels or {}).get(value, value)) for value in values)


def dims_entries(entries: Entries) -> Iterable[Entry]:
    """Those of a model that is no size of the edition, filled."""
    for field in DIMS:
        yield TextEntry(field, _LABELS.get(field, field), entries.text(field))


def more_entries(entries: Entries) -> Iterable[Entry]:
    """Those of the fold, filled."""
    yield Chips("edition", "edition", chips_of(EDITIONS), (entries.edition,), multiple=False)
    yield Chips("arch", "arch", chips_of(ARCHES), (entries.arch,), multiple=False)
    yield Chips("sync", "sync", chips_of(SYNCS), (entries.sync,), multiple=False)
    yield TextEntry("seed", "seed", entries.seed)
    yield TextEntry("threads", "threads", entries.threads, hint="torch's own")
    yield Chips("ddof", "std ddof", chips_of(("1", "0")), (entries.ddof,), multiple=False)
    yield TextEntry("timeout_s", "timeout s", entries.timeout_s, hint="none, per cell")
    yield TextEntry("repeats", "repeats", entries.repeats)
    yield Chips("after_oom", "after OOM", chips_of(AFTER_OOM), (entries.after_oom,), multiple=False)
