"""Lines of JSON between the process that runs cells of ranks over nodes and the one on each node that starts these."""

from __future__ import annotations

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import DeviceSampled
from cs336_tui.events.reports import ReportRequest
from cs336_tui.runner.hanging import Stuck


class CellWork(msgspec.Struct, frozen=True, tag=True):
    """A cell to run."""

    spec: CellSpec
    cell: int
    nvtx: bool = False


class ReportWork(msgspec.Struct, frozen=True, tag=True):
    """A report to make."""

    request: ReportRequest
    report: int


Work = CellWork | ReportWork


def spec_of(work: Work) -> CellSpec:
    return work.spec if isinstance(work, CellWork) else work.request.spec


class Serve(msgspec.Struct, frozen=True, tag=True):
    """Serve a store in which ranks meet, in place of the last; answered by `Served`."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Start the ranks of a node: `here` of them from `first` on; they meet in the store at `address` and `port`."""

    work: Work
    first: int
    here: int
    node: int
    nodes: int
    address: str
    port: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Stop the ranks between two steps, as a user asks."""


class Kill(msgspec.Struct, frozen=True, tag=True):
    """End the ranks at once."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Say within so many seconds where the ranks are, by `Answered`."""

    within_s: float


Order = Serve | Run | Stop | Kill | Ask


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first word of a node."""

    environment: Environment


class Served(msgspec.Struct, frozen=True, tag=True):
    """The store's port; 0 if there is none, and why."""

    port: int
    why: str = ""


class Told(msgspec.Struct, frozen=True, tag=True):
    """An event of a rank, as a line of a log has it."""

    rank: int
    event: msgspec.Raw


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """The node's host, and the GPUs of its ranks."""

    sample: DeviceSampled


class Answered(msgspec.Struct, frozen=True, tag=True):
    stuck: tuple[Stuck, ...]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """No process could be started for the ranks."""

    why: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The node lives. Told every `BEAT_S` seconds while its ranks run."""


class Over(msgspec.Struct, frozen=True, tag=True):
    """All ranks of the node are gone, and what they had started."""


Word = Ready | Served | Told | Sampled | Answered | Refused | Beat | Over

BEAT_S = 1.0
_ENCODER = msgspec.json.Encoder()
_ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_WORDS: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def line_of(message: Order | Word) -> bytes:
    return _ENCODER.encode(message) + b"\n"


def order_of(line: bytes) -> Order:
    """Raises `msgspec.MsgspecError`."""
    return _ORDERS.decode(line)


def word_of(line: bytes) -> Word:
    """Raises `msgspec.MsgspecError`."""
    return _WORDS.decode(line)
