"""A bundle is the same everywhere, and every change of it is found."""

import contextlib
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cs336_tui.events import events as ev
from cs336_tui.export import bundle
from cs336_tui.export.bundle import CODE, LOG, MANIFEST, BundleError, Manifest, make_bundle, packed, unpacked, verified
from cs336_tui.session.log import LogReader
from tests.samples import DEMO_LOG, ranks_session

FILES = {"mine.py": b"def attend(): ...\n"}


@cache
def demo() -> bytes:
    return make_bundle(list(LogReader(DEMO_LOG)), FILES)[0]


def sealed(members: dict[str, bytes]) -> bytes:
    """The members with a manifest that fits them: all that a forger can do without knowing the program."""
    manifest = msgspec.json.decode(members[MANIFEST], type=Manifest)
    sums = {name: bundle.sha256(data) for name, data in members.items() if name != MANIFEST}
    return packed({**members, MANIFEST: msgspec.structs.replace(manifest, members=sums).sealed.text})


def test_a_bundle_is_as_it_was_made() -> None:
    found = verified(demo())
    assert found.problems == ()
    assert found.files["mine.py"] == bundle.sha256(FILES["mine.py"])
    assert demo() == make_bundle(list(LogReader(DEMO_LOG)), FILES)[0]
    members, _ = unpacked(demo())
    assert {LOG, CODE, MANIFEST, "environment.json", "commands.txt", "record.json", "tables/verdicts.md"} <= {*members}
    assert sealed(members) == demo()


def test_a_bundle_of_ranks_and_of_a_session_that_was_stopped_is_as_it_was_made() -> None:
    assert verified(make_bundle(ranks_session(), {})[0]).problems == ()
    assert verified(make_bundle(list(LogReader(DEMO_LOG))[:60], {})[0]).problems == ()


def test_names_of_files_are_without_what_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "alice")
    files = {"alice/model.py": b"1", "user/model.py": b"2", "alice_notes.py": b"3"}
    found = verified(make_bundle(list(LogReader(DEMO_LOG)), files)[0]).files
    assert sorted(found) == ["user/model.py", "user/model.py (1)", "user_notes.py"]
    assert {*found.values()} == {bundle.sha256(data) for data in files.values()}


@pytest.mark.parametrize("time_zone", ["Asia/Tokyo", "America/Los_Angeles"])
def test_a_bundle_is_verified_in_another_time_zone_with_peaks_and_points_of_ones_own(
    time_zone: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = demo()
    monkeypatch.setenv("TZ", time_zone)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert verified(data).problems == ()


@pytest.mark.parametrize("number", range(15))
def test_a_changed_byte_is_found(number: int) -> None:
    chance = random.Random(number)
    members, _ = unpacked(demo())
    name = chance.choice(sorted(members))
    content = bytearray(members[name])
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    problems = verified(packed({**members, name: bytes(content)})).problems
    assert any(problem.startswith(name) for problem in problems)


def changed_step(members: dict[str, bytes], field: str, place: int) -> None:
    """A time of a line of steps, which `LOG` has many of."""
    lines = members[LOG].split(b"\n")
    words = [b'"type":"StepsTimed"', b'"kind":"measured"', f'"{field}"'.encode()]
    at = [number for number, line in enumerate(lines) if all(word in line for word in words)]
    line = json.loads(lines[at[place]])
    times = line[field] if isinstance(line[field], list) else next(iter(line[field].values()))
    times[0] *= 1.001
    lines[at[place]] = json.dumps(line, separators=(",", ":")).encode()
    members[LOG] = b"\n".join(lines)


def changed_summary(members: dict[str, bytes], _: str, place: int) -> None:
    """The mean that a cell's process told, which spares readers the steps."""
    lines = members[LOG].split(b"\n")
    at = [n for n, line in enumerate(lines) if b'"summary":{"n":' in line][place]
    lines[at] = re.sub(rb'"mean_s":([\d.]+)', lambda found: b'"mean_s":%.12f' % (float(found[1]) * 0.99), lines[at])
    members[LOG] = b"\n".join(lines)


def changed_figure(members: dict[str, bytes], name: str, place: int) -> None:
    """A figure with decimals in a table or in the record."""
    figures = list(re.finditer(rb"\d\.(\d)\d*", members[name]))
    found = figures[place * len(figures) // 5]
    digit = b"%d" % ((int(found[1]) + 1) % 10)
    members[name] = members[name][: found.start(1)] + digit + members[name][found.end(1) :]


CHANGES: dict[str, tuple[Any, str, int]] = {
    **{f"step {n}": (changed_step, "times_s", n) for n in (0, 7, -1)},
    **{f"phase {n}": (changed_step, "phases_s", n) for n in (2, -3)},
    "host": (changed_step, "host_s", 4),
    "summary": (changed_summary, "", 1),
    **{f"record {n}": (changed_figure, "record.json", n) for n in (0, 3)},
    **{name: (changed_figure, f"tables/{name}", 2) for name in (
        "results.json", "results.md", "pivot-mean.json", "pivot-tokens.md", "verdicts.json", "raw-steps.md",
    )},
}  # fmt: skip


def demo_with_summaries() -> list[ev.Event]:
    """The demo session as a newer version writes it."""
    events = list(LogReader(DEMO_LOG))
    state = bundle._from_steps(events)
    return [
        msgspec.structs.replace(event, summary=state.cells[event.cell].summary(1))
        if isinstance(event, ev.CellFinished) and event.status == "ok"
        else event
        for event in events
    ]


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_figure_is_found_though_all_hashes_fit(what: str) -> None:
    change, name, place = CHANGES[what]
    members, _ = unpacked(make_bundle(demo_with_summaries(), FILES)[0])
    before = dict(members)
    change(members, name, place)
    assert members != before
    problems = verified(sealed(members)).problems
    assert problems
    assert not any("SHA-256" in problem for problem in problems)


def test_a_log_whose_summaries_are_not_of_its_steps_is_not_bundled() -> None:
    events = demo_with_summaries()
    at = next(n for n, event in enumerate(events) if isinstance(event, ev.CellFinished) and event.summary)
    end = events[at]
    assert isinstance(end, ev.CellFinished)
    assert end.summary
    wrong = msgspec.structs.replace(end.summary, n=end.summary.n + 1)
    events[at] = msgspec.structs.replace(end, summary=wrong)
    with pytest.raises(BundleError, match="not bundled"):
        make_bundle(events, {})


def test_members_that_are_missing_new_or_twice_are_found() -> None:
    members, _ = unpacked(demo())
    del members["tables/results.md"]
    assert verified(packed(members)).problems[0] == "tables/results.md: is missing"
    assert any("tables/results.md" in problem for problem in verified(sealed(members)).problems)
    members["tables/more.md"] = b"| a better result |\n"
    assert "tables/more.md: is not in the manifest" in verified(packed(members)).problems
    assert any("tables/more.md: the steps give none" in problem for problem in verified(sealed(members)).problems)


def test_texts_of_another_version_may_differ_and_numbers_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    members, _ = unpacked(demo())
    record = members["tables/results.json"].replace(b"mean (ms)", b"average (ms)")
    members["tables/results.json"] = record
    data = sealed(members)
    assert verified(data).problems
    monkeypatch.setattr(bundle, "__version__", "9.9.9")
    assert verified(data).problems == ()
    changed_figure(members, "tables/results.json", 2)
    assert verified(sealed(members)).problems


@pytest.mark.parametrize(
    ("there", "differs"),
    [({"a": [1.0, 2.0]}, False), ({"a": "1.5"}, False), ({"a": None}, False), ({"b": 1}, False), ({"a": 1.6}, True)],
)
def test_another_version_may_leave_out_add_and_write_otherwise(there: Any, differs: bool) -> None:
    expected = {"a": [1.0] if isinstance(there.get("a"), list) else 1.5}
    assert bool([*bundle._unlike("", there, expected, with_words=False)]) == differs
    assert [*bundle._unlike("", there, expected, with_words=True)]


def test_another_version_may_have_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    members, _ = unpacked(demo())
    members["tables/more.json"] = members.pop("tables/results.json")
    assert verified(sealed(members)).problems
    monkeypatch.setattr(bundle, "__version__", "9.9.9")
    assert verified(sealed(members)).problems == ()


@pytest.mark.parametrize("data", [b"", b"no zip", demo()[:-40], packed({"a.txt": b"x"})], ids=range(4))
def test_what_is_no_bundle_is_refused(data: bytes) -> None:
    with pytest.raises(BundleError, match="not a bundle"):
        verified(data)


def test_damaged_archives_are_found() -> None:
    """A byte of the packed data: of a member that is then no longer to be had."""
    data = bytearray(demo())
    data[len(data) // 3] ^= 0xFF
    assert any("cannot be unpacked" in problem for problem in verified(bytes(data)).problems)


@pytest.mark.parametrize("bit", range(8))
def test_a_changed_byte_beside_the_members_is_found(bit: int) -> None:
    """Of the first header and of the directory at the end, as of all of a small archive."""
    small = packed({MANIFEST: b"{}", LOG: b"x"})
    for place in range(len(small)):
        data = bytearray(small)
        data[place] ^= 1 << bit
        with contextlib.suppress(BundleError):
            assert unpacked(bytes(data))[1], place
