"""Values that a shell completes: of a choice, and the names of what there is here. Each answers within milliseconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Value = str | tuple[str, str]
"""A value, or one with a few words on it, which zsh and fish show."""
Source = Callable[[click.Context, str], Iterable[Value]]
"""The values that fit a context and the beginning of a word; others may be among them."""
_Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]
_READ_FOR_S = 0.08
"""The time in which names of sessions are read; of older ones the id alone is known."""


def offer(source: Source | Sequence[str]) -> _Complete:
    """For `shell_complete` of an option or argument. In a comma list the last word is completed, those before it are
    not offered again."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        several = getattr(parameter.type, "several", False)
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        there = set(before.split(",")) if comma else set()
        if parameter.nargs == -1 or parameter.multiple:
            there.update(map(str, context.params.get(parameter.name or "") or ()))
        found: dict[str, str] = {}
        for each in source(context, last) if callable(source) else source:
            value, about = (each, "") if isinstance(each, str) else each
            if value.startswith(last) and value not in there:
                found.setdefault(value, about)
        return [CompletionItem(f"{before}{comma}{value}", help=about or None) for value, about in found.items()]

    return complete


def sessions(context: click.Context, incomplete: str) -> Iterator[Value]:
    """``last``, then each session by its id and by its name, newest first."""
    from cs336_tui.session.log import default_session_dir
    from cs336_tui.session.store import folder_sessions, name_of

    folder = context.params.get("session_dir") or default_session_dir()
    yield "last", "the newest"
    stop_at = time.monotonic() + _READ_FOR_S
    for path in reversed(folder_sessions(Path(folder))):
        name = name_of(path) if time.monotonic() < stop_at else ""
        yield path.stem, name
        if name and incomplete:
            yield name, path.stem


def presets(_context: click.Context, _incomplete: str) -> Iterator[Value]:
    from cs336_tui.config.presets import FORMER, QUICK, preset_files

    yield QUICK.name, QUICK.about
    for name, path in preset_files():
        if name not in FORMER:
            about = re.search(r'^about = "(.*)"', path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            yield name, about[1] if about else ""


def sizes(context: click.Context, _incomplete: str) -> Iterator[Value]:
    """Those of the edition, else of all, the newest first."""
    from cs336_tui.config.spec import size_names
    from cs336_tui.config.values import EDITIONS

    asked = context.params.get("edition")
    for edition in [asked] if asked in EDITIONS else reversed(EDITIONS):
        yield from size_names(edition)


def devices(_context: click.Context, _incomplete: str) -> Iterator[Value]:
    yield from ("auto", "every", "cpu", "mps", "cuda")
    yield from sorted(f"cuda:{path.name.removeprefix('nvidia')}" for path in Path("/dev").glob("nvidia[0-9]*"))


def gpus(_context: click.Context, _incomplete: str) -> Iterator[Value]:
    from cs336_tui.events.gpus import known_gpus

    for gpu in known_gpus():
        yield gpu.name, f"compute capability {gpu.capability}"


def problems(_context: click.Context, _incomplete: str) -> Iterator[Value]:
    from cs336_tui.config.problems import PROBLEMS

    for problem in PROBLEMS:
        yield problem.name, problem.title


def columns(_context: click.Context, _incomplete: str) -> Iterable[Value]:
    from cs336_tui.export.subjects.results_columns import COLUMNS

    return COLUMNS


def layouts(_context: click.Context, _incomplete: str) -> Iterator[Value]:
    from cs336_tui.export.writeups import LAYOUTS

    for name, layout in LAYOUTS.items():
        yield name, layout.about


def conditions(_context: click.Context, incomplete: str) -> Iterator[Value]:
    """``KEY=``, then ``KEY=VALUE`` of a choice that has named values."""
    from cs336_tui.analysis.fields import FIELDS
    from cs336_tui.config.spec import AXES

    key, equals, _ = incomplete.partition("=")
    if not equals:
        yield from ((f"{each}=", field.title) for each, field in FIELDS.items())
    for axis in AXES.values():
        if equals and axis.column == key:
            yield from (f"{key}={value}" for value in axis.values)


def pivots(_context: click.Context, incomplete: str) -> Iterator[Value]:
    """``auto``, or rows, then columns after a colon; several of each with commas."""
    from cs336_tui.analysis.fields import FIELDS

    before = re.match(r"(.*[:,])?", incomplete)
    prefix = before[0] if before else ""
    yield from ((f"{prefix}{each}", field.title) for each, field in FIELDS.items())
    if not prefix:
        yield "auto"


def searched(_context: click.Context, incomplete: str) -> Iterator[Value]:
    """Names of choices, several with commas; after ``name=`` its values."""
    from cs336_tui.config.tuned_sweep import searched_axes

    name, equals, _ = incomplete.partition("=")
    before, comma, _ = incomplete.rpartition(",")
    for axis in searched_axes():
        if not equals:
            yield f"{before}{comma}{axis.option}", axis.title
        elif axis.option == name:
            start = f"{before}," if comma else f"{name}="
            there = before.partition("=")[2].split(",")
            yield from (f"{start}{value}" for value in axis.values if value not in there)


def themes(_context: click.Context, _incomplete: str) -> Iterator[Value]:
    import platformdirs

    package = Path(__file__).parents[1]
    own = platformdirs.user_config_path("cs336-tui", appauthor=False) / "themes"
    for folder in (package / "themes", package.parent / "themes", own):
        yield from sorted(path.stem for path in folder.glob("*.toml"))


def of_setting(context: click.Context, incomplete: str) -> Iterable[Value]:
    """The values of the setting that is the argument KEY; of columns the last in the list."""
    match context.params.get("key"):
        case "theme":
            return themes(context, incomplete)
        case "preset":
            return presets(context, incomplete)
        case "low_bandwidth":
            return ("true", "false")
        case "export_format":
            from cs336_tui.export.writing.files import FILE_FORMATS

            return FILE_FORMATS
        case "columns":
            before, comma, _ = incomplete.rpartition(",")
            return (f"{before}{comma}{each}" for each in columns(context, incomplete) if isinstance(each, str))
        case _:
            return ()


OF_CHOICES: dict[str, Source | Sequence[str]] = {
    "size": sizes,
    "device": devices,
    "warmup_steps": ("auto",),
    "measure_steps": ("auto",),
}
"""Values of choices that are no list of names, by the choice."""
