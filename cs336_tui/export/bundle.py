"""A bundle: a session as one file that travels, and the proof of it. A zip archive has the log without what is private,
what is derived from it (environment, commands, record and tables), hashes of the code, and a manifest with the SHA-256
of each member and of itself. `verified` derives all of it again, from the raw steps."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from cs336_tui import __version__
from cs336_tui.analysis.merge import Result, results_of
from cs336_tui.config.axis import UserError
from cs336_tui.events import events as ev
from cs336_tui.events.codec import from_line, to_line
from cs336_tui.export.folder import tables_of
from cs336_tui.export.record import document_of, to_json
from cs336_tui.export.reports import report_tables
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Column, Source, Table, cell_record
from cs336_tui.export.writing.texts import json_text
from cs336_tui.export.writing.verdicts import cell_names, judgement_of, limits_of
from cs336_tui.session.log import DAMAGE
from cs336_tui.session.redaction import redaction_of
from cs336_tui.session.state import SessionState, fold
from cs336_tui.stats.intervals import MeanInterval
from cs336_tui.stats.quantities import UNKNOWN
from cs336_tui.stats.summaries import skews, summarize

FORMAT = 1
"""Version of the bundle's members; raised when an older `verified` would misread them."""
LOG, CODE, MANIFEST = "session.jsonl", "code.json", "manifest.json"
_OF_READER = ("reference", "roofline")
"""Tables that also hold figures of the reader's own machine, which no log has."""
_TABLES = {"json": "json", "markdown": "md"}
_EXACT = 1e-12
"""Relative difference of two numbers that are the same, computed by different processors."""
_LARGEST_BYTES = 1 << 32
_AT = (1980, 1, 1, 0, 0, 0)
"""The time of each member, so that a session always comes to the same bundle."""


class BundleError(UserError):
    """A file that is no bundle, or a session that cannot be one; one line says why."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The SHA-256 of each member by its name, and of the manifest while `sha256` is empty. `app` is the version of
    cs336-tui that made the bundle."""

    format: int
    app: str
    session: str
    members: dict[str, str]
    sha256: str = ""

    @property
    def text(self) -> bytes:
        return json_text(self).encode()

    @property
    def sealed(self) -> Manifest:
        """The manifest with its own hash."""
        return msgspec.structs.replace(self, sha256=sha256(msgspec.structs.replace(self, sha256="").text))


class Verified(NamedTuple):
    """A bundle that was verified: a line for each member that is not as it should be; if its log could be read its
    session, from the raw steps alone; and the SHA-256 of each file of the code that was timed."""

    manifest: Manifest
    problems: tuple[str, ...]
    state: SessionState | None = None
    files: Mapping[str, str] = {}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_bundle(events: Sequence[ev.Event], files: Mapping[str, bytes]) -> tuple[bytes, Manifest]:
    """The bundle of a session's events; `files` are those of the code that was timed, by name. Raises `BundleError`
    for a session that could not be verified: its summaries are not those of its steps."""
    redacted = redaction_of(events)
    public = list(map(redacted, events))
    state = _from_steps(public)
    in_force = (cell.in_force.model_revision for cell in state.cells.values() if cell.in_force)
    names = sorted((redacted(name), name) for name in files)  # several names may come to one
    code = {
        "written_by": state.started.app if state.started else "",
        "sha256_of_files": {
            f"{name} ({number})" if number else name: sha256(files[own])
            for _, same in itertools.groupby(names, lambda pair: pair[0])
            for number, (name, own) in enumerate(same)
        },
        "revisions_as_timed": sorted(set(filter(None, in_force))),
    }
    members = {LOG: b"".join(map(to_line, public)), CODE: json_text(code).encode(), **derived(state)}
    sums = {name: sha256(data) for name, data in sorted(members.items())}
    session = state.started.session if state.started else ""
    manifest = Manifest(format=FORMAT, app=__version__, session=session, members=sums).sealed
    data = packed({MANIFEST: manifest.text, **members})
    if problems := verified(data).problems:
        raise BundleError(f"not bundled: {problems[0]}")
    return data, manifest


def packed(members: Mapping[str, bytes]) -> bytes:
    """The members as a zip archive. They are stored, so that the archive is the same with every zlib."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(name, _AT), content)
    return data.getvalue()


def unpacked(data: bytes) -> tuple[dict[str, bytes], list[str]]:
    """The members of a zip archive by name, and a line for each that is damaged. Raises `BundleError` for another
    file."""
    members: dict[str, bytes] = {}
    problems: list[str] = []
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:  # of a changed byte zipfile raises nearly anything
        raise BundleError(f"not a bundle, which is a zip archive: {error}") from None
    if sum(each.file_size for each in archive.infolist()) > _LARGEST_BYTES:
        raise BundleError(f"its members are larger than {_LARGEST_BYTES >> 30} GiB")
    for each in archive.infolist():
        problems += [f"{each.filename}: is there twice"] if each.filename in members else []
        try:
            members[each.filename] = archive.read(each)
        except Exception as error:
            problems.append(f"{each.filename}: cannot be unpacked: {error}")
    if not problems and packed(members) != data:
        problems.append("the archive: bytes beside its members are other ones")
    return members, problems


def verified(data: bytes) -> Verified:
    """Hold the members of a bundle against their hashes, the log's summaries against its raw steps, and what is derived
    against what comes of these. Raises `BundleError` for a file that is none."""
    members, problems = unpacked(data)
    if MANIFEST not in members and not problems:
        raise BundleError(f"not a bundle: no {MANIFEST} is in it")
    text = members.pop(MANIFEST, b"")
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except DAMAGE as error:
        empty = Manifest(format=FORMAT, app="", session="", members={})
        return Verified(empty, (*problems, f"{MANIFEST}: damaged: {error}"))
    if manifest.format > FORMAT:
        raise BundleError(f"it was made by a newer cs336-tui ({manifest.app}): upgrade to verify it")
    sums = {name: sha256(content) for name, content in members.items()}
    problems += [f"{MANIFEST}: its own SHA-256 is another one"] if text != manifest.sealed.text else []
    for name in sorted(sums.keys() | manifest.members.keys()):
        if sums.get(name) != (expected := manifest.members.get(name)):
            fault = "its SHA-256 is another one" if name in sums else "is missing"
            problems.append(f"{name}: {fault if expected else 'is not in the manifest'}")
    try:
        events = [from_line(line) for line in members[LOG].split(b"\n") if line]
        files = msgspec.json.decode(members[CODE], type=dict[str, Any])["sha256_of_files"]
        state = _from_steps(events)
        problems += _wrong_summaries(events, state)
        again, is_ours = derived(state), manifest.app == __version__
        more = sorted(members.keys() - again.keys() - {LOG, CODE}) if is_ours else ()
        problems += [f"{name}: the steps give none" for name in more]
        for name in (name for name in again if is_ours or name in members):
            places = _differences(name, members.get(name, b""), again[name], with_words=is_ours)
            problems += [f"{name}: {place} by the steps" for place in itertools.islice(places, 1)]
    except Exception as error:  # a log that was changed may break what reads it anywhere
        return Verified(manifest, (*problems, f"{LOG} or {CODE}: damaged: {error or type(error).__name__}"))
    return Verified(manifest, tuple(problems), state, files)


def _from_steps(events: Iterable[ev.Event]) -> SessionState:
    """The session without the log's own summaries, so that each comes of the raw steps."""
    return fold(
        msgspec.structs.replace(event, summary=None, skew=None) if isinstance(event, ev.CellFinished) else event
        for event in events
    )


def _wrong_summaries(events: Iterable[ev.Event], state: SessionState) -> Iterator[str]:
    """The summaries in the log that are not those of their cells' steps."""
    ends = (event for event in events if isinstance(event, ev.CellFinished) and event.status == "ok")
    for end in ends:
        cell = state.cells[end.cell]
        for noted, times_s in ((end.summary, cell.step_times_s), (end.skew, skews(cell.times.rank_s))):
            known = {key: value for key, value in msgspec.to_builtins(noted or {}).items() if value is not None}
            found = msgspec.to_builtins(summarize(times_s, known.get("ddof", 1)))
            places = _unlike("", known, {key: found[key] for key in known}, with_words=True)
            yield from (f"{LOG}: cell {end.cell + 1}: {place} by the steps" for place in places)


def derived(state: SessionState) -> dict[str, bytes]:
    """The members that come of the log: environment, commands, the record of every cell and the tables."""
    state.break_off()
    results = results_of(state)
    tables = {**tables_of(results, _no_peak), **report_tables([state], results)}
    made = {
        "environment.json": json_text(state.environment),
        "commands.txt": "".join(f"{command}\n" for command in state.commands),
        "record.json": to_json(document_of(state, peaks=_no_peak)),
    }
    for (name, several), (format_, suffix) in itertools.product(tables.items(), _TABLES.items()):
        if name not in _OF_READER:
            made[f"tables/{name}.{suffix}"] = render_all(several, format_)
    return {name: text.encode() for name, text in made.items()}


def _no_peak(_: object) -> None:
    """A peak that was measured is known to the machine alone that measured it."""


def _differences(name: str, there: bytes, expected: bytes, *, with_words: bool) -> Iterator[str]:
    """The places in which a member is not as expected. Without `with_words` only numbers that both have count, as the
    texts of another version may differ."""
    if name.endswith(".json"):
        data = (msgspec.json.decode(each) if each else None for each in (there, expected))
        yield from _unlike("", *data, with_words=with_words)
    elif with_words:
        lines = itertools.zip_longest(there.splitlines(), expected.splitlines())
        yield from (f"line {number} is another one" for number, (a, b) in enumerate(lines, 1) if a != b)


def _unlike(place: str, there: Any, expected: Any, *, with_words: bool) -> Iterator[str]:
    """The places in which data are not as expected, numbers by more than `_EXACT`."""
    match there, expected:
        case dict(), dict():
            for key in there.keys() | expected.keys() if with_words else there.keys() & expected.keys():
                yield from _unlike(f"{place} {key}", there.get(key), expected.get(key), with_words=with_words)
        case list(), list() if len(there) == len(expected):
            for number, pair in enumerate(zip(there, expected, strict=True), 1):
                yield from _unlike(f"{place} {number}", *pair, with_words=with_words)
        case (int() | float(), int() | float()) if math.isclose(there, expected, rel_tol=_EXACT):
            return
        case _ if there != expected and (
            with_words or all(isinstance(each, int | float) for each in (there, expected))
        ):
            yield f"{place.strip()} is {str(there)[:40]}, but {str(expected)[:40]}"


class Again(NamedTuple):
    """A cell of a bundle, and its result in a new run, or why there is none."""

    before: Result
    after: Result | None
    reason: str


def again_table(cells: Sequence[Again]) -> Table:
    """A row a cell: its old mean and interval, the new mean, and as `answer` whether it lies in the interval: ``yes``,
    ``no``, or why that is not known."""
    names = cell_names([each.before for each in cells])
    judgements = {id(each.before.cell): judgement_of(each.before.cell, each.before.state) for each in cells}

    def interval(each: Again) -> MeanInterval | None:
        judgement = judgements[id(each.before.cell)]
        return judgement.interval if judgement else None

    def mean_s(each: Again) -> float | None:
        return each.after.cell.running.mean if each.after and each.after.is_measured else None

    def answer(each: Again) -> str:
        new_s, old = mean_s(each), interval(each)
        if new_s is None:
            return f"not known: {each.after.ending if each.after else each.reason or 'not run'}"
        if old is None:
            return "not known: fewer than 10 steps have no interval"
        return "yes" if old.low <= new_s <= old.high else "no"

    columns: tuple[Source[Again], ...] = (
        lambda each: {"number": each.before.cell.cell + 1, **cell_record(each.before.spec)},
        Column("cell", left=True, text=lambda each: names[each.before.source, each.before.cell.cell]),
        Column("old_mean_s", "old mean (ms)", read=lambda each: each.before.cell.running.mean, show=_milliseconds),
        Column(
            "interval",
            "its 95 % CI (ms)",
            text=lambda each: limits_of(old.low, old.high, old.mean) if (old := interval(each)) else UNKNOWN,
        ),
        Column("mean_s", "new mean (ms)", read=mean_s, show=_milliseconds),
        Column("answer", "in the interval", left=True, read=answer),
    )
    note = "the interval is of one run's mean; from run to run a machine may drift by more"
    return Table.of(cells, columns, caption="Measured again", footnotes=(note,), label="again")


def _milliseconds(time_s: float | None) -> str:
    return UNKNOWN if time_s is None else f"{time_s * 1e3:.3f}"
