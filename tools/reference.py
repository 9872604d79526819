"""Writes the reference pages of the docs from the code: ``python -m tools.reference``, which ``make docs`` runs."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
import msgspec

from cs336_tui.analysis.comparison import Comparison
from cs336_tui.analysis.estimates import judge
from cs336_tui.analysis.fields import FIELDS
from cs336_tui.analysis.judgement import DESCRIBING, VerdictName
from cs336_tui.analysis.scaling import Device, plan
from cs336_tui.analysis.targets import named_target, search
from cs336_tui.cli.estimate import document as estimate_document
from cs336_tui.cli.help import HEADINGS, record_of, under_headings
from cs336_tui.cli.main import cli
from cs336_tui.events.events import SCHEMA, Event, Status
from cs336_tui.events.gpus import find_gpu
from cs336_tui.events.prediction import Prediction
from cs336_tui.events.reports import Report
from cs336_tui.export.record import SessionDocument, document_of, to_csv
from cs336_tui.export.reports import document_of_reports
from cs336_tui.export.subjects.estimates import Fitted, fit_document
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.subjects.scaling import plan_document
from cs336_tui.export.writeups import LAYOUTS
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import SessionInfo
from cs336_tui.stats.ratio import Outcome
from cs336_tui.tui.help import GLOSSARY, NUMBERS, VERDICTS, bindings_by_id, key_sections, printed
from tests.made_kernels import a_kernel_report
from tests.made_memory import a_memory_report
from tests.made_precision import a_precision_report
from tests.made_predictions import made_prediction
from tests.samples import a_spec

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_MADE = "<!-- Written from the code by `python -m tools.reference`, which `make docs` runs. -->"
_SIMPLE = {str: "text", Path: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
_SHARED_BY = 3
"""An option that at least this many commands share, with the same help, is described once."""


def main() -> None:
    """Writes every page that is out of date."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(FOLDER.parents[1])}")


def pages() -> Mapping[str, str]:
    """Each page's text, by its file's name."""
    made = {
        "options.md": _options(),
        "keys.md": _keys(),
        "verdicts.md": _verdicts(),
        "glossary.md": _glossary(),
        "app_keys.md": _app_keys(),
    }
    return {name: "\n".join([_MADE, "", *lines]).rstrip() + "\n" for name, lines in made.items()}


def commands() -> Mapping[str, click.Command]:
    """Every command by its typed name, the app itself as ``cs336-tui``."""
    found: dict[str, click.Command] = {}
    waiting: list[tuple[str, click.Command]] = [("cs336-tui", cli)]
    while waiting:
        title, command = waiting.pop(0)
        found[title] = command
        if isinstance(command, click.Group):
            context = click.Context(command)
            inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
            waiting += [(f"{title} {name}", each) for name, each in inner.items() if each is not None]
    return dict(sorted(found.items()))


_Help = tuple[str, str, str]
"""An option's names and value, what it means, and its heading, as ``--help`` has them."""


def _help(command: click.Command, title: str) -> list[_Help]:
    context = click.Context(command, info_name=title)
    found = under_headings(command, context).items()
    return [(*record_of(option, context), heading) for heading, options in found for option in options]


def _options() -> Iterator[str]:
    of_command = {title: _help(command, title) for title, command in commands().items()}
    used: dict[_Help, list[str]] = {}
    for title, records in of_command.items():
        for record in records:
            used.setdefault(record, []).append(title)
    shared = {record: titles for record, titles in used.items() if len(titles) >= _SHARED_BY}
    yield from ("# Commands and options", "")
    yield "Each command's `--help-all`, or `--help` of a few, says the same. What several commands share comes first."
    yield from ("", "## Shared options", "")
    everywhere = [record for record, titles in shared.items() if len(titles) == len(of_command)]
    for heading in HEADINGS:
        if found := [_option(each) for each in shared if each not in everywhere and each[2] == heading]:
            yield from (f"### {heading}", "", *_table(("option", "meaning"), found), "")
    yield from (f"Every command has {_code(names)}: {meaning}" for names, meaning, _ in everywhere)
    for title, command in commands().items():
        records = of_command[title]
        context = click.Context(command, info_name=title)
        arguments = " ".join(command.collect_usage_pieces(context)) if title != "cs336-tui" else "[OPTIONS] [COMMAND]"
        yield from ("", f"## {title}", "", f"`{title} {arguments}`", "")
        yield from inspect.cleandoc(command.help or "").splitlines()
        if own := [record for record in records if record not in shared]:
            yield ""
            yield from _table(("option", "meaning"), map(_option, own))
        if borrowed := [record[0] for record in records if record in shared and record not in everywhere]:
            names = ", ".join(f"`{_name(each)}`" for each in borrowed)
            yield from ("", f"[Shared options](#shared-options): {names}.")
    yield from ("", "## Layouts of export", "")
    yield from _table(("layout", "table"), ((_code(name), layout.about) for name, layout in LAYOUTS.items()))


def _option(record: _Help) -> tuple[str, str]:
    names, meaning, _ = record
    return _code(names), meaning


def _name(names: str) -> str:
    """The option alone, without its value: of ``-o, --output FILE`` the long name."""
    return str(re.findall(r"--[a-z0-9-]+", names)[0])


def _keys() -> Iterator[str]:
    yield from ("# JSON and CSV keys", "")
    yield "Names that end in `_s` are seconds, in `_bytes` bytes, in `_share` shares of 1."
    yield "Unknown is null, in CSV empty."
    yield from ("", "## JSON of a session", "")
    yield "`bench`, `resume` and `export` with `--format json` print one session as:"
    seen: set[type] = set()
    yield from _structs(SessionDocument, seen)
    yield from ("", 'Several sessions are `{"schema": 1, "sessions": [...]}`.')
    yield from ("", "## CSV of a session", "")
    yield "`--format csv` has a row for each finished cell. Lists are joined by `;`. Its columns are:"
    yield from (
        "",
        textwrap.fill(", ".join(map(_code, to_csv(document_of(SessionState())).strip().split(","))), 120),
        "",
    )
    yield "Then come `phase_NAME_times_s` and `host_phase_NAME_times_s` for each phase that a cell has,"
    yield "and `rank_N_times_s` for each rank of cells of several."
    yield "Rows of several sessions begin with `session`."
    yield from ("", "## Columns of the results table", "")
    yield "`export --columns` takes the columns on the left. Their keys in CSV and JSON of that table are on the right."
    yield from ("", *_table(("column", "header", "key"), (
        (_code(name), column.header.format(unit="ms", rate="TFLOP/s"), _code(column.key))
        for name, column in COLUMNS.items()
    )))  # fmt: skip
    yield from ("", "## Pivots and filters", "")
    yield "`export --pivot` and `--where` take these fields."
    yield from ("", *_table(("field", "title", "of"), (
        (_code(key), field.title, field.kind) for key, field in FIELDS.items()
    )))  # fmt: skip
    yield from ("", "## JSON of other tables", "")
    yield "`export --format json` with a pivot, a layout or `--report` prints"
    yield '`{"caption": ..., "columns": [...], "rows": [{...}], "notes": [...]}`, several tables `{"tables": [...]}`.'
    yield "`rows` holds a record for each row, its numbers not rounded."
    for title, command, value in _examples():
        yield from ("", f"## JSON of {title}", "", f"{command} prints these keys; `[]` stands for each of a list:", "")
        yield ", ".join(map(_code, dict.fromkeys(_outline(value))))
    yield from ("", "A `prediction` and its blocks of memory:", *_structs(Prediction, seen))
    yield from ("", "## JSON of compare", "", "`compare --json` prints:", *_structs(Comparison, seen))
    yield from ("", "## JSON of sessions", "", "`sessions --json` prints a list of:", *_structs(SessionInfo, seen))
    yield from ("", "## Session log", "")
    yield f"The log has one JSON object a line, schema {SCHEMA}."
    yield "`type` names the event, `at` is its Unix time in seconds."
    yield from ("", *_table(("event", "fields", "meaning"), map(_event, get_args(Event))))


def _examples() -> Iterator[tuple[str, str, Any]]:
    """Documents that are no struct: title, command, and an example made as in the tests."""
    spec = a_spec()
    target = named_target(find_gpu("H100 80GB"))
    prediction = made_prediction(spec)
    estimate = estimate_document(judge(prediction, target))
    yield "estimate", "`estimate --format json`", {"estimates": [estimate], "total_low_s": 0.1, "total_high_s": 0.1}
    fit = search(spec, "batch", made_prediction, target.room_bytes(1) or 0)
    yield "fit", "`fit --format json`", {"fits": [fit_document(Fitted(spec, fit, target))]}
    planned = plan(spec, "model", 2, Device(1e15, 450e9), (1,))
    yield "plan", "`plan --format json`", {"plans": [plan_document(planned)]}
    reports: dict[str, Report] = {
        "kernels": a_kernel_report(),
        "memory": a_memory_report(),
        "precision": a_precision_report(),
    }
    for title, report in reports.items():
        yield (
            title,
            f'`{title} --format json`, of several cells in `{{"reports": [...]}}`,',
            document_of_reports([report]),
        )


def _outline(value: Any, path: str = "") -> Iterator[str]:
    """Each key of a document by its path, ``estimates[].fits``; fields of structs are left out."""
    if isinstance(value, dict) and value and not path.endswith(("spec", "prediction")):
        for key, inner in value.items():
            yield from _outline(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict | msgspec.Struct):
        yield from _outline(value[0], f"{path}[]")
    else:
        yield path


def _event(event: type[msgspec.Struct]) -> tuple[str, str, str]:
    fields = ", ".join(_code(name) for name in event.__struct_encode_fields__ if name != "at")
    return _code(event.__name__), fields, _first(event.__dict__.get("__doc__"))


def _structs(root: type[msgspec.Struct], seen: set[type]) -> Iterator[str]:
    """A table of the struct's keys, then of each struct in it that was not `seen` before."""
    waiting = [root]
    while waiting:
        struct = waiting.pop(0)
        notes = _notes(struct)
        rows = []
        for field in msgspec.structs.fields(struct):
            for inner in _inner(field.type):
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
            rows.append((_code(field.encode_name), _code(_type(field.type)), notes.get(field.name, "")))
        yield from ("", f"### {struct.__name__}", "", _first(struct.__dict__.get("__doc__")), "")
        explained = any(meaning for *_, meaning in rows)
        yield from _table(("key", "type", "meaning") if explained else ("key", "type"), rows)


def _inner(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for each in get_args(kind):
        yield from _inner(each)


def _type(kind: Any) -> str:
    """A type as JSON has it: ``list of number or null``."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return "text"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_type, parts)))
    if origin in (tuple, list):
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"object of {_type(parts[1])}"
    return _SIMPLE.get(origin) or str(origin.__name__)


def _notes(struct: type) -> Mapping[str, str]:
    """The docstring below each field, by its name; of the structs above, too."""
    found: dict[str, str] = {}
    for each in reversed([each for each in struct.__mro__ if each.__module__.startswith("cs336_tui")]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[field.target.id] = " ".join(text.split())
    return found


def _verdicts() -> Iterator[str]:
    yield from ("# Verdicts, outcomes, statuses", "", "## Verdicts on a cell", "")
    yield "A verdict describes a number or doubts it."
    yield "A verdict for which this device, system or run gives no evidence is *not observable*."
    yield "[Read the numbers](../measurement.md#trust) has the thresholds."
    meanings = dict(VERDICTS)
    yield from ("", *_table(("verdict", "kind", "meaning"), (
        (_code(name), "describes" if name in DESCRIBING else "doubts", meanings[name]) for name in get_args(VerdictName)
    )))  # fmt: skip
    yield from ("", "## Outcomes of a comparison", "")
    yield f"{', '.join(map(_code, get_args(Outcome)))}. [Compare](../compare.md#compare) explains them."
    yield from ("", "## Statuses of a cell", "")
    yield "A cell without a result is `queued`, `running` or `skipped`."
    yield f"A cell that is over has one of these statuses: {', '.join(map(_code, get_args(Status)))}."
    yield "[Read the numbers](../measurement.md#status-of-a-cell) explains them."


def _app_keys() -> Iterator[str]:
    yield from (
        "# Keys of the app",
        "",
        "A key means the same on every tab. Help in the app (`?`) shows these, moved ones with their new keys.",
        "",
    )
    yield "`cs336-tui config set keymap.NAME KEY` moves one by the name of its action."
    bindings = bindings_by_id()
    for section in key_sections():
        rows = [
            (
                " ".join(dict.fromkeys(_code(printed(bindings[id])) for id in name.split())),
                about,
                " ".join(map(_code, name.split())),
            )
            for name, about in section.entries
            if bindings.keys() >= {*name.split()}
        ]
        if rows:
            yield from ("", f"## {section.title}", "", *([section.about, ""] if section.about else []))
            yield from _table(("key", "what it does", "name"), rows)


def _glossary() -> Iterator[str]:
    yield from ("# Glossary", "", "Help in the app (`?`) shows the same.", "")
    yield from _table(("term", "meaning"), [*GLOSSARY.items()])
    yield from ("", "## Numbers on the screen", "")
    yield from _table(
        ("number", "meaning"), ((name, f"{about[0].upper()}{about[1:]}") for name, about in NUMBERS.items())
    )


def _first(text: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((text or "").split("\n\n")[0].split()).replace("``", "`")


def _code(text: str) -> str:
    return f"`{text}`"


def _table(header: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join('---' for _ in header)} |"
    for row in rows:
        cells = (_bars(" ".join(cell.replace("``", "`").split())) for cell in row[: len(header)])
        yield f"| {' | '.join(cells)} |"


def _bars(cell: str) -> str:
    """The cell with the bars escaped that are not in code, where the site needs no escape and would show it."""
    return "".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(re.split("(`[^`]*`)", cell)))


if __name__ == "__main__":
    main()
