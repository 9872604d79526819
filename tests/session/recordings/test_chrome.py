"""Chrome traces in the forms that torch and others write, cut where it hurts, and files that are none."""

import gzip
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.session.recordings import chrome, recording, trace
from cs336_tui.session.recordings.recording import Opening, OpeningCancelled
from tests.session.recordings import made_traces as made
from tests.session.recordings.made_traces import launch, op, span, trace_of, user, write
from tests.session.recordings.recordings import refusal, report_of


def kernels_of(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {group.name: (group.op, group.durations_ns) for group in report_of(path).groups}


@pytest.fixture
def usual(tmp_path: Path) -> KernelReport:
    return report_of(write(tmp_path / "usual.json", made.TRAINING))


FORMS: dict[str, Any] = {
    "gzipped": ("a.json.gz", made.TRAINING, {}),
    "indented": ("a.json", made.TRAINING, {"indent": 2}),
    "without a space": ("a.json", made.TRAINING, {"separators": (",", ":")}),
    "under another name": ("a.txt", made.TRAINING, {}),
    "a bare list": ("a.json", made.TRAINING["traceEvents"], {}),
    "the events first": ("a.json", {"traceEvents": made.TRAINING["traceEvents"], "schemaVersion": 1}, {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_trace_reads_alike(tmp_path: Path, usual: KernelReport, form: str) -> None:
    name, content, how = FORMS[form]
    report = report_of(write(tmp_path / name, content, **how))
    assert (report.groups, report.copies, report.gaps) == (usual.groups, usual.copies, usual.gaps)


@pytest.mark.parametrize("end", ["", ",", ",\n"])
def test_a_list_may_lack_its_end(tmp_path: Path, usual: KernelReport, end: str) -> None:
    path = tmp_path / "open.json"
    path.write_text(json.dumps(made.TRAINING["traceEvents"]).removesuffix("]") + end)
    assert report_of(path).groups == usual.groups


@pytest.mark.parametrize("chunk", [40, 97, 256, 1000, 5000])
@pytest.mark.parametrize("indent", [None, 2])
def test_pieces_end_between_events_wherever_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    """Names and arguments have what looks like the place between two events."""
    odd = 'a}, {"ph": "X"}, {"cat": \\" ],'
    nested = {"list": [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}], "text": '},{"ph'}
    events = [
        [op(odd, 10 * at, 8, **nested), *launch(f"gemm {at % 3} {odd}", at, 10 * at + 1, 10 * at + 3, 2 + at / 1000)]
        for at in range(40)
    ]
    whole = trace_of(*events, deviceProperties=[{"id": 0, "name": "A"}, {"id": 1, "name": "B"}])
    path = write(tmp_path / "made.json", whole, indent=indent)
    expected = report_of(path)
    assert expected.launches == 40
    assert expected.device_name == "A"
    monkeypatch.setattr(chrome, "CHUNK", chunk)
    report = report_of(path)
    assert report == expected
    assert {group.op for group in report.groups} == {odd}


EPOCH = 1_712_195_495_519_695
"""Microseconds since 1970: 2^53 ns are 9,007,199,254,740 of them."""


@pytest.mark.parametrize("base", [0, 1_419_247_332_972, 2**42 - 2, EPOCH, 2**53 // 1000 + 1, 10**18 // 1000])
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, base: int) -> None:
    """Written with three decimals, which a float of microseconds does not hold beyond 2^53 ns."""
    path = tmp_path / "made.json"
    kernel = '{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":7,"ts":{ts},"dur":{dur},"args":{{}}}}'
    begins = [(1, "001"), (7, "501"), (30, "999"), (31, "000")]
    texts = [kernel.format(name=i, ts=f"{base + us}.{ns}", dur="0.123") for i, (us, ns) in enumerate(begins)]
    path.write_text(f'{{"traceEvents": [{", ".join(texts)}]}}')
    report = report_of(path)
    at = [us * 1000 + int(ns) for us, ns in begins]
    lengths = sorted((late - early - 123 for early, late in pairwise(at)), reverse=True)
    assert [gap.ns for gap in report.gaps.largest] == [each for each in lengths if each > 0]
    assert report.span_ns == at[-1] + 123 - at[0]
    assert report.total_ns == 4 * 123


@pytest.mark.parametrize(
    ("ts", "dur"),
    [("5", "3"), ("5.0", "3.0"), ('"5"', '"3"'), ('"5.000"', '"3.000"'), ("5e0", "3e0"), ("50e-1", "0.3e1")],
)
def test_numbers_in_any_spelling(tmp_path: Path, ts: str, dur: str) -> None:
    path = tmp_path / "made.json"
    other = '{"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":10.25,"dur":1.5,"args":{"device":"0"}}'
    first = f'{{"ph":"X","cat":"kernel","name":"a","pid":"GPU 0","tid":"stream 7","ts":{ts},"dur":{dur},"args":{{}}}}'
    path.write_text(f"[{first},{other}]")
    report = report_of(path)
    assert (report.total_ns, report.span_ns, report.launches) == (4_500, 6_750, 2)


@pytest.mark.parametrize(
    "args", [None, [], [1, {"a": 2}], "text", 3, {"correlation": "1"}, {"correlation": None}, {"correlation": 1.0},
             {"correlation": 2**70}, {"correlation": {}}, {"device": "x", "stream": []}]
)  # fmt: skip
def test_arguments_of_any_type(tmp_path: Path, args: Any) -> None:
    odd = launch("odd", 1, 2, 3, 1)[1] | {"args": args}
    path = write(tmp_path / "made.json", trace_of(op("aten::mm", 0, 9), launch("gemm", 5, 1, 3, 4), odd))
    found = kernels_of(path)
    assert found["gemm"] == ("aten::mm", (4_000,))
    assert found["odd"][1] == (1_000,)


KERNEL: dict[str, Any] = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}


@pytest.mark.parametrize(
    "event",
    [
        {}, {"ph": "X"}, {"cat": "kernel"}, 7, None, "x", [], KERNEL | {"ts": "x"}, KERNEL | {"dur": -5},
        KERNEL | {"dur": 1e300}, KERNEL | {"ts": -1e300}, {"ph": "X", "cat": "cpu_op", "name": 5, "ts": {}, "dur": []},
    ],
)  # fmt: skip
def test_events_that_are_none_are_left_out(tmp_path: Path, event: Any) -> None:
    path = write(tmp_path / "made.json", trace_of(op("aten::mm", 0, 9), launch("gemm", 5, 1, 3, 4), [event]))
    assert kernels_of(path) == {"gemm": ("aten::mm", (4_000,))}


def test_times_whose_sum_would_overflow_are_refused(tmp_path: Path) -> None:
    events = [launch("gemm", at, 1, 3, 9e14) for at in range(30)]
    assert "longer than a century" in refusal(write(tmp_path / "made.json", trace_of(*events)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"\xff\xfe", "\ufffd\ufffd"),
        (rb"a\ud800b \ud83d\ude00", "a\ufffdb \U0001f600"),  # a surrogate alone, and a pair that makes a character
    ],
)
def test_bytes_and_escapes_that_are_no_character_are_replaced_and_numbers_that_json_has_not_are_read(
    tmp_path: Path, text: bytes, name: str
) -> None:
    """Python writes NaN and Infinity, as in an occupancy of 0 / 0."""
    frame = span("python_function", "f", 1, 1, x=float("nan"), y=float("inf"))
    path = write(tmp_path / "made.json", trace_of(launch("gemm", 1, 1, 3, 4), frame, launch("XX", 2, 2, 9, 1)))
    path.write_bytes(path.read_bytes().replace(b"XX", text))
    assert {kernel: times for kernel, (_, times) in kernels_of(path).items()} == {"gemm": (4_000,), name: (1_000,)}


def test_categories_of_torch_1_8(tmp_path: Path) -> None:
    kernel = span("Kernel", "gemm", 3, 4, 7, correlation=1, device=0, stream=7)
    call = span("Runtime", "cudaLaunchKernel", 1, 1, correlation=1)
    fill = span("Memset", "Memset (Device)", 8, 1, 7, correlation=2, device=0, stream=7)
    report = report_of(
        write(tmp_path / "made.json", trace_of([span("Operator", "aten::mm", 0, 9), call, kernel, fill]))
    )
    assert [(group.op, group.durations_ns) for group in report.groups] == [("aten::mm", (4_000,))]
    assert len(report.copies) == 1


NOT_TRACES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "empty gzip": (gzip.compress(b""), "no recording"),
    "blank": (b" \n ", "no recording"),
    "binary": (bytes(range(256)) * 10, "no recording"),
    "text": (b"hello\n", "no recording"),
    "an object": (b'{"a": 1}', "it has no traceEvents"),
    "an empty object": (b"{}", "no recording"),
    "a list of numbers": (b"[1, 2]", "no recording"),
    "no events": (b'{"traceEvents": []}', "no kernel and no operator in it"),
    "events of another kind": (b'{"traceEvents": {"a": 1}}', "it has no traceEvents"),
    "events that are numbers": (b'{"traceEvents": [1, 2, 3]}', "none of its events can be read"),
    "cut": (json.dumps(made.TRAINING).encode()[:-300], "cut or damaged"),
    "cut in the first event": (json.dumps(made.TRAINING).encode()[:80], "cut or damaged"),
    "cut gzip": (gzip.compress(json.dumps(made.TRAINING).encode())[:-20], "cut: the file ends before its gzip does"),
    "broken gzip": (b"\x1f\x8b\x08\x00" + b"rubbish" * 20, "no recording"),
    "nested": (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
    "nested arguments": (
        b'{"traceEvents": [{"ph":"X","args":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}]}",
        "nested too deeply",
    ),
    "frames of Python alone": (
        json.dumps(trace_of(span("python_function", "f", 0, 9), user("forward", 0, 9))).encode(),
        "no kernel and no operator in it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_TRACES)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    data, why = NOT_TRACES[kind]
    path = tmp_path / "made.json"
    path.write_bytes(data)
    assert why in refusal(path)


def test_a_corrupt_gzip_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(json.dumps(made.TRAINING).encode()))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "made.json.gz"
    path.write_bytes(data)
    assert any(word in refusal(path) for word in ("damaged", "cut", "no recording"))
    assert refusal(tmp_path / "none.json") == "no such file or directory"
    assert refusal(tmp_path) == "is a directory"


def _bomb(text: bytes, begin: bytes, megabytes: int) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = text * ((1 << 20) // len(text))
    return deflate.compress(begin) + b"".join(deflate.compress(piece) for _ in range(megabytes)) + deflate.flush()


@pytest.mark.parametrize(
    ("begin", "text", "why"),
    [
        (b'{"traceEvents": [', b" ", "no end of an event within"),
        (b'{"a": "', b"a", "no traceEvents in its first"),
        (b'{"traceEvents": [', b"{},", "MB decompressed"),
    ],
)
def test_a_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes, text: bytes, why: str
) -> None:
    monkeypatch.setattr(chrome, "LONGEST_EVENT", 1 << 22)
    monkeypatch.setattr(chrome, "CHUNK", 1 << 18)
    monkeypatch.setattr(recording, "INFLATED", 1 << 23)
    path = tmp_path / "made.json.gz"
    path.write_bytes(_bomb(text, begin, 12))
    assert why in refusal(path)


@pytest.mark.parametrize(
    ("limit", "what"), [("MOST_ROWS", "events"), ("MOST_TEXT", "names"), ("MOST_THREADS", "threads")]
)
def test_more_than_memory_should_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, what: str
) -> None:
    for module in (chrome, trace):
        monkeypatch.setattr(module, limit, 3, raising=False)
    events = [op(f"aten::op{at}", at, 1, thread=at) for at in range(9)]
    assert f"more {what} than" in refusal(write(tmp_path / "made.json", trace_of(*events, launch("gemm", 1, 1, 3, 4))))


def test_progress_is_told_and_reading_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome, "CHUNK", 500)
    path = write(tmp_path / "made.json", made.TRAINING)
    told: list[tuple[int, int]] = []
    chrome.read(path, Opening(lambda done, total: told.append((done, total))), "made")
    size = path.stat().st_size
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted({done for done, _ in told})

    def stop(done: int, total: int) -> None:
        if done > total / 2:
            raise OpeningCancelled

    with pytest.raises(OpeningCancelled):
        chrome.read(path, Opening(stop), "made")


def test_user_names_never_drive_the_reader(tmp_path: Path) -> None:
    """Control characters and markup are kept in names: what shows them escapes them."""
    name = "\x1b[31m[bold]</script>\u202e"
    path = write(tmp_path / "made.json", trace_of(user(name, 0, 9), op("aten::mm", 0, 9), launch(name, 1, 1, 3, 4)))
    (group,) = report_of(path).groups
    assert (group.name, group.path) == (name, (name,))
