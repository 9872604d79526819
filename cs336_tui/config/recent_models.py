"""Users' own models that were run recently, kept in a small file so that they need not be typed again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
import platformdirs

from cs336_tui.config.reading import UNREADABLE, read_small, write_quietly
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.variants import is_imported

MOST = 10
"""Number of models that are kept."""


class RecentModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model by its name, with what it was run with."""

    model: str
    args: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


def models_in(sweep: Sweep) -> tuple[RecentModel, ...]:
    """Users' own models that the sweep runs, in its order."""
    return tuple(
        RecentModel(model=name, args=sweep.model_args, path=sweep.model_path, annotations=sweep.annotations)
        for name in sweep.models
        if is_imported(name)
    )


def recent_models(file: Path | None = None) -> tuple[RecentModel, ...]:
    """Recent models, newest first; none if the file cannot be read."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(read_small(file or _usual_file()), type=tuple[RecentModel, ...])[:MOST]
    return ()


def remember(models: Iterable[RecentModel], file: Path | None = None) -> tuple[RecentModel, ...]:
    """Put these before those that were run earlier; the models that are kept now.

    Of one name in the same folders the latest is kept. A file that cannot be written is left as it is.
    """
    file = file or _usual_file()
    kept: dict[tuple[str, tuple[str, ...]], RecentModel] = {}
    for model in (*models, *recent_models(file)):
        kept.setdefault((model.model, model.path), model)
    newest = tuple(kept.values())[:MOST]
    with contextlib.suppress(UnicodeEncodeError):
        write_quietly(file, msgspec.json.format(msgspec.json.encode(newest)))
    return newest


def _usual_file() -> Path:
    return platformdirs.user_state_path("cs336-tui", appauthor=False) / "recent-models.json"
