"""Events of a trace in Chrome's format: their shapes, and their decoding, exact or lenient."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec

from cs336_tui.session.recordings.trace import COPY, FILL, KERNEL

_LONE = re.compile(r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""Escapes of surrogates: pairs are the group; one alone is no character."""
_Long = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None
_Short = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments of an event that are looked at; others are skipped."""

    correlation: _Long = None
    device: _Short = None
    stream: _Long = None
    sequence: _Long = msgspec.field(default=None, name="Sequence number")
    forward: _Short = msgspec.field(default=None, name="Fwd thread id")


_NONE = Args()
_ARGS = dict(zip(Args.__struct_encode_fields__, Args.__struct_fields__, strict=True))
"""Names of arguments in the file, with those of `Args`."""


class _AnyEvent(msgspec.Struct, gc=False):
    """One event but for its time; `dur` in microseconds."""

    cat: str = ""
    ph: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    dur: float = 0.0
    args: Args = _NONE


class Event(_AnyEvent, gc=False):
    """One event; times in microseconds."""

    ts: float = 0.0


class EpochEvent(_AnyEvent, gc=False):
    """One event whose time is too large for a float: as written."""

    ts: msgspec.Raw = msgspec.Raw(b"0")


class Around(msgspec.Struct):
    """The document round the events."""

    traceEvents: list[msgspec.Raw] = []  # as the format has it
    deviceProperties: Any = None
    distributedInfo: Any = None
    host_name: Any = None
    pytorch_version: Any = None


DECODE = msgspec.json.Decoder(list[Event], strict=False)
DECODE_EPOCH = msgspec.json.Decoder(list[EpochEvent], strict=False)
DECODE_ONE = msgspec.json.Decoder(EpochEvent, strict=False)
_DECODE_TIMES = msgspec.json.Decoder(dict[str, msgspec.Raw])
SPLIT = msgspec.json.Decoder(list[msgspec.Raw])
AROUND = msgspec.json.Decoder(Around)

OPERATORS = frozenset(("cpu_op", "Operator"))
RANGES = frozenset(("user_annotation",))
CALLS = frozenset(("cuda_runtime", "cuda_driver", "Runtime"))
ACTIVITIES = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL, "Kernel": KERNEL, "Memcpy": COPY, "Memset": FILL,
}  # fmt: skip
"""Categories of events; those with capitals are torch 1.8's to 1.11's."""
KEPT = OPERATORS | RANGES | CALLS | ACTIVITIES.keys()


def loads(text: bytes) -> Any:
    """As Python's own decoder takes it, which knows NaN; what is no character is replaced. Raises ValueError."""
    return json.loads(_LONE.sub(lambda each: each[1] or r"\ufffd", text.decode(errors="replace")), strict=False)


def exact_us(written: msgspec.Raw) -> tuple[int, int]:
    """Whole microseconds and nanoseconds of a time as written. Raises ValueError, OverflowError."""
    whole, _, part = bytes(written).strip(b'"').partition(b".")
    if b"e" in part or b"E" in part or b"e" in whole or b"E" in whole:
        return divmod(round(float(written) * 1000), 1000)
    return int(whole), int((part + b"000")[:3]) + (part[3:4] >= b"5")


def read_oddly(raw: msgspec.Raw) -> EpochEvent | None:
    """An event of which some fields have unusual types; None if it is none that can be read."""
    try:
        found = msgspec.json.decode(raw)
        if not isinstance(found, dict):
            return None
        args = found.get("args")
        named = args if isinstance(args, dict) else {}
        given = {_ARGS[key]: _whole(value) for key, value in named.items() if key in _ARGS}
        times = _DECODE_TIMES.decode(raw)
        return EpochEvent(
            cat=_text(found.get("cat")),
            ph=_text(found.get("ph")),
            name=_text(found.get("name")),
            pid=_named(found.get("pid")),
            tid=_named(found.get("tid")),
            ts=times.get("ts", msgspec.Raw(b"0")),
            dur=float(found.get("dur") or 0),
            args=Args(**given),
        )
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError):
        return None


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _named(found: object) -> int | str | None:
    return found if isinstance(found, int | str) else str(found)


def _whole(found: Any) -> int | None:
    try:
        number = int(found)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if abs(number) < 2**31 else None
