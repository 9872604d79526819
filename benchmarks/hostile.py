"""Generated untrusted inputs: session logs, presets, themes and flags."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cs336_tui.config.presets import QUICK, to_toml
from cs336_tui.events.codec import to_line
from cs336_tui.events.events import CellsPredicted, Event, ReportFinished, ReportStarted, SessionAnnotated
from cs336_tui.events.reports import REPORTS, Report
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.tui.preferences import _COLORS as COLOURS
from cs336_tui.tui.preferences import VARIABLE_DEFAULTS
from tests.made_kernels import a_kernel_report
from tests.made_memory import a_memory_report, an_oom_report
from tests.made_precision import a_precision_report
from tests.made_predictions import made_prediction
from tests.samples import START, mixed_session

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 10**9, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, 0.0, -0.0, -1.5, 5e-324,
    2.2e-308, 1e-200, 1e-30, 1e15, 1e18, 1e19, 1e80, 1e155, 1e300, 1.7e308, -1e308, 253402300800, -62135596801,
)  # fmt: skip
"""Numbers at the limits of types, clocks and arithmetic."""
TEXTS = (
    "", " ", "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x07", "\x1bP$q\x1b\\", "\x9b31m", "\x9d0;t\x9c",
    "a\x00b", "\x7f\x08\x08", "two\nlines\r\nthree\rfour", "tab\there", "\u2028\u2029\x85", "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3", "@SUM(A1)", "\t=1", "\u202egnp.exe", "\ufeff", "x" * 5000, "́" * 50, "😀" * 40, "日本語" * 30,
    "[red]markup[/]",
    "[", "\\", "{}", "%s%n", "'; --", "<script>alert(1)</script>", "$(id)", "`id`", "../../etc/passwd",
    "cuda:99999999999",
    "auto", "auto:9999999999999", "NaN", "nan", "inf", "-0", "1e999", "1_000", "١٢٣", "fp32", "tiny", "=".join("ab"),
)  # fmt: skip
"""Texts with a meaning to a terminal, a spreadsheet, markup, a shell or a parser."""


DEMO_LOG = Path(__file__).parents[1] / "tests" / "data" / "demo-session.jsonl"
TRACE = DEMO_LOG.with_name("v100-training.trace.json")


def base_log() -> list[dict[str, Any]]:
    """The lines of one small session that holds every kind of event and of report."""
    events: list[Event] = list(mixed_session())
    spec = next(event.specs[0] for event in events if hasattr(event, "specs"))
    reports: tuple[Report, ...] = (
        a_kernel_report(spec),
        a_memory_report(layers=1),
        a_precision_report(spec),
        an_oom_report(),
    )
    kinds = ("kernels", "memory", "precision", "oom")
    events[-1:-1] = [
        SessionAnnotated(at=START + 1, name="a name", note="a note"),
        CellsPredicted(at=START + 2, predictions=(made_prediction(spec),)),
    ]
    for number, (kind, content) in enumerate(zip(kinds, reports, strict=True)):
        events[-1:-1] = [
            ReportStarted(at=START + 40, report=number, kind=kind, spec=spec, cell=0),  # type: ignore[arg-type]
            ReportFinished(at=START + 41, report=number, status="ok", content=content),
        ]
    lines = [json.loads(to_line(event)) for event in events]
    demo = [json.loads(line) for line in DEMO_LOG.read_text().splitlines()]
    sampled = [line for line in demo if line["type"] == "DeviceSampled"][:6]
    return [*lines[:-1], *sampled, lines[-1]]


def a_place(value: Any, chance: random.Random) -> tuple[Any, ...]:
    """The path of some value inside a JSON value; every key of a level is as likely, however much it holds."""
    path: list[Any] = []
    while isinstance(value, dict | list) and value and (not path or chance.random() < 0.9):
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        path.append(key)
        value = value[key]
    return tuple(path)


def put(value: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """The JSON value with the value at `path` changed."""
    if not path:
        return change(value)
    copy = value.copy()
    copy[path[0]] = put(copy[path[0]], path[1:], change)
    return copy


def spoilt(value: Any, chance: random.Random) -> Any:
    """Another value, mostly of the same type, so that it passes the type checks and reaches computations."""
    if chance.random() < 0.03:
        return chance.choice([None, True, chance.choice(NUMBERS), chance.choice(TEXTS), [], {}, [[]], {"": []}])
    match value:
        case bool():
            return not value
        case int():
            return chance.choice([value + 1, -value, *(n for n in NUMBERS if isinstance(n, int))])
        case float():
            return chance.choice([-value, value * 1e9, *NUMBERS])
        case str():
            return chance.choice([value + chance.choice(TEXTS), chance.choice(TEXTS)])
        case list():
            return chance.choice([[], value[:-1], value * 2, [*value, *value[:1]], value[::-1]])
        case dict():
            kept = [key for key in value if chance.random() < 0.8]
            return {key: value[key] for key in kept} | chance.choice([{}, {chance.choice(TEXTS): 1}])
        case _:
            return chance.choice([*NUMBERS, *TEXTS])


_CLOSED = frozenset("type schema status stage kind category activity recorder pass precision sync arch edition".split())
"""Keys whose values are few known words, so that any other is refused before anything computes with it."""


def a_log(base: Sequence[dict[str, Any]], chance: random.Random) -> bytes:
    """A log with something wrong with it: its values, its lines, its bytes, or nothing that is a log at all."""
    lines = list(base)
    kind = chance.choice(["values"] * 6 + ["lines", "bytes", "shape"])
    if kind == "values":
        for _ in range(chance.choice([1, 3, 10])):
            number = chance.randrange(len(lines))
            path = a_place(lines[number], chance)
            if path[-1] not in _CLOSED:
                lines[number] = put(lines[number], path, lambda value: spoilt(value, chance))
    elif kind == "lines":
        for _ in range(chance.choice([1, 3, 10])):
            place, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            lines[place : place + chance.choice([0, 1])] = [lines[other]] * chance.choice([1, 1, 50])
    data = bytearray(b"".join(json.dumps(line, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")
                              + b"\n" for line in lines))  # fmt: skip
    if kind == "bytes":
        for _ in range(chance.choice([1, 5, 200])):
            data[chance.randrange(len(data))] = chance.choice([0, 10, 13, 27, 34, 91, 123, 0xC0, 0xFF])
    elif kind == "shape":
        head = data[: data.index(b"\n") + 1]
        deep = chance.choice([b"[", b'{"a":']) * chance.choice([900, 100_000])
        data = bytearray(chance.choice([
            b"", b"\n\n", b"\x00" * 5000, b"\xff\xfe" + head, b'{"type":"SessionStarted","\xff', deep, head + deep,
            head + b'{"type":"Notice","at":1,"text":"x","more":' + deep, head.replace(b'"schema":',
            b'"schema":1e999,"s":'),
            head.replace(b'"schema": ', b'"schema": 9'), head + b'{"type":"Notice","at":1,"text":"\\ud800"}\n',
            head + b"\xef\xbb\xbf" + head, head * 3, data[: len(data) // 2], bytes(reversed(data)),
        ]))  # fmt: skip
    return bytes(data)


def a_trace(chance: random.Random) -> bytes:
    """A torch profiler trace with something wrong with it: its values, its bytes, its length."""
    found = json.loads(TRACE.read_text())
    kind = chance.choice(["values"] * 6 + ["bytes", "cut", "shape"])
    for _ in range(chance.choice([1, 3, 30]) if kind == "values" else 0):
        path = a_place(found, chance)
        if path and len(path) > 1:
            found = put(found, path, lambda value: spoilt(value, chance))
    data = bytearray(json.dumps(found, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass"))
    for _ in range(chance.choice([1, 5, 200]) if kind == "bytes" else 0):
        data[chance.randrange(len(data))] = chance.choice([0, 10, 13, 27, 34, 91, 123, 0xC0, 0xFF])
    if kind == "cut":
        del data[chance.randrange(len(data)) :]
    if kind == "shape":
        deep = chance.choice([b"[", b'{"a":']) * chance.choice([900, 100_000])
        data = bytearray(chance.choice([b'{"traceEvents":[' + deep, b"[" + deep, data * 2, data + deep, data[::-1]]))
    return gzip.compress(data) if chance.random() < 0.3 else bytes(data)


def _toml_word(value: Any) -> str:
    """A value as TOML writes it, as far as it can be written so."""
    match value:
        case None:
            return "1979-05-27T07:32:00Z"
        case bool():
            return str(value).lower()
        case float() | int():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(_toml_word, value))}]"
        case _:
            return "{ a = 1 }"


def _toml(lines: Sequence[str], keys: Sequence[str], chance: random.Random) -> bytes:
    """The lines of a TOML document with something wrong: values, keys, lines, bytes or depth."""
    found = list(lines)
    for _ in range(chance.choice([1, 1, 3])):
        value = chance.choice([*NUMBERS, *TEXTS, True, None, [], [[1]], {}, ["a", 1], list(range(300)), ["x"] * 3000])
        line = f"{chance.choice(keys)} = {_toml_word(value)}"
        place = chance.randrange(len(found))
        found[place : place + chance.choice([0, 1, 1])] = [line]
    text = "\n".join(found).encode(errors="surrogatepass")
    match chance.randrange(12):
        case 0:
            text += b"\nabout = " + chance.choice(
                [b"[" * 5000, b"[" * 5000 + b"]" * 5000, b"{a=" * 5000, b'"""' + b"x" * 2**21]
            )
        case 1:
            text = b".".join([b"a"] * chance.choice([10, 20_000])) + b" = 1\n" + text
        case 2:
            text = bytes(chance.randrange(256) for _ in range(chance.choice([0, 1, 300])))
        case 3:
            text = text[: chance.randrange(len(text))]
    return text


def a_preset(chance: random.Random) -> bytes:
    """A preset's file with something wrong with it."""
    lines = [line for line in to_toml(QUICK).splitlines() if line]
    keys = [line.partition(" = ")[0] for line in lines if " = " in line]
    keys += [
        "model",
        "model_arg",
        "annotate",
        "interval",
        "causal",
        "d_model",
        "num_heads",
        "\x1b",
        '"a\\u001bb"',
        "x.y",
    ]
    if chance.random() < 0.1:
        several = ", ".join(map(str, range(1, 210)))
        return "\n".join(f"{key} = [{several}]" for key in ("context", "batch", "warmup")).encode()
    return _toml(lines, keys, chance)


def a_theme(chance: random.Random) -> bytes:
    """A theme's file with something wrong with it."""
    colours = [f'{name} = "#{chance.randrange(2**24):06x}"' for name in COLOURS]
    lines = ['name = "mine"', "dark = true", "[colors]", *colours, "[variables]", 'ok = "#00ff00"']
    return _toml(
        lines, ["name", "dark", "ansi", *COLOURS, *VARIABLE_DEFAULTS, "block-cursor-text-style", "[a]\nb"], chance
    )


_RUNS = ("bench", "estimate", "fit", "kernels", "memory", "precision", "ab", "")
_CHOICES = (
    "--size", "--d-model", "--d-ff", "--num-layers", "--num-heads", "--vocab-size", "--context", "--batch", "--pass",
    "--precision", "--device", "--warmup", "--steps", "--interval", "--edition", "--arch", "--sync", "--seed",
    "--threads", "--model", "--model-arg", "--model-path", "--annotate", "--attention", "--compile", "--checkpoint",
    "--optimizer", "--loss", "--cuda-graph", "--workload", "--head-dim", "--preset", "--timeout", "--session-dir",
)  # fmt: skip
_EXPORTS = (
    "--pivot", "--value", "--baseline", "--layout", "--columns", "--report", "--where", "--unit", "--digits",
    "--caption", "--format", "-o", "--session-dir",
)  # fmt: skip
_VALUES = (
    "size:pass", "auto", "size", "mean", "speedup", "memory", "kernels", "oom", "roofline", "precision=fp32", "a=b",
    "ms", "3", "csv", "json", "html", "latex", "typst", "raw-steps", "size,pass,mean", "1,2,3", "0", "10%",
    ",".join(map(str, range(1, 4000))), "9" * 5000, ",", "a:b", "x" * 300,
)  # fmt: skip


def some_flags(logs: Sequence[str], chance: random.Random) -> list[str]:
    """A command line that starts no cell: a command that runs cells gets at least one impossible value."""

    def value() -> str:
        found = chance.choice([*TEXTS, *_VALUES, *map(str, NUMBERS)])
        return found.replace("\x00", "\x01")  # no command line can hold it

    if chance.random() < 0.5:
        words = [chance.choice(_RUNS)]
        for option in chance.sample(_CHOICES, chance.randrange(6)):
            words += [option, value()]
        if words[0] == "ab":
            words += ["--a", value(), "--b", value()]
        words += chance.choice([["--pass", "no such pass"], ["--threads", "0"], ["--precision", "\x1b[31mfp99"]])
        return [word for place, word in enumerate(words) if word or place]
    command = chance.choice(
        ["export"] * 5 + ["show", "compare", "sessions", "rename", "presets", "reference", "nothing"]
    )
    words = [command, *(chance.choice([*logs, "last", value()]) for _ in range(chance.randrange(3)))]
    for option in chance.sample(_EXPORTS, chance.randrange(4)) if command == "export" else ():
        words += [option, value()]
    words += chance.choice([[], [], ["--json"], [value()], ["--reference"], ["--compare"]])
    return words


def questions(log: str, chance: random.Random) -> list[list[str]]:
    """Command lines that read a log in every way, some of them."""
    several = [
        ["show", log], ["export", log, "--format", chance.choice(FORMATS)],
        ["export", log, "--report", chance.choice(tuple(REPORTS)), "--format", chance.choice(FORMATS)],
        ["export", log, "--pivot", chance.choice(["auto", "size:pass", "size,context:precision"]),
         "--format", chance.choice(FORMATS)],
        ["export", log, "--layout", chance.choice(["by-mean", "raw-steps", "min-max"])],
        ["compare", log, log], ["export", log, "--reference"], ["reference", log], ["sessions", "--json"],
    ]  # fmt: skip
    return [several[0], ["sessions"], *chance.sample(several[1:], 2)]


def line(value: dict[str, Any]) -> bytes:
    """One line of a log."""
    return json.dumps(value).encode() + b"\n"
