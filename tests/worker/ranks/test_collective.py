"""The check of a collective, with ranks that are played by this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from cs336_tui.config.choices import sweep_from
from cs336_tui.worker.ranks.group import OPERATIONS, Message, WrongMessage

RANKS = 3


def sent_by(message: Message, rank: int) -> Tensor:
    """The numbers that a rank sends in its check: (i + p + 3 r) mod 11 at place i of part p."""
    part = message.received.numel() // RANKS if message.sent.numel() * RANKS == message.received.numel() else None
    parts = [rank] if part else range(RANKS)
    size = message.sent.numel() // len(parts)
    return torch.cat([(torch.arange(size) + p + 3 * rank) % 11 for p in parts]).to(message.sent.dtype)


def reduced(arrays: Sequence[Tensor], _: int) -> Tensor:
    return torch.stack(list(arrays)).sum(0)


RIGHT: dict[str, Callable[[Sequence[Tensor], int], Tensor]] = {
    "all-reduce": reduced,
    "all-gather": lambda arrays, _: torch.cat(list(arrays)),
    "reduce-scatter": lambda arrays, rank: reduced(arrays, rank).chunk(RANKS)[rank],
    "broadcast": lambda arrays, _: arrays[0],
    "all-to-all": lambda arrays, rank: torch.cat([array.chunk(RANKS)[rank] for array in arrays]),
}


def checked(operation: str, precision: str, play: Callable[[Sequence[Tensor], int], Tensor], rank: int = 1) -> None:
    (spec,) = sweep_from(
        workload="collective", collectives=(operation,), ranks=(RANKS,), sizes=("6KB",), precisions=(precision,),
        devices=("cpu",),
    ).cells()  # fmt: skip
    message = Message(spec, torch.device("cpu"), rank)

    def call(received: Tensor, sent: Tensor) -> None:
        arrays = [sent_by(message, each) for each in range(RANKS)]
        assert torch.equal(sent, arrays[rank])
        received.copy_(play(arrays, rank))

    message._operation = message._operation._replace(call=call)
    message.check()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_must_come_out_is_taken(operation: str, precision: str):
    checked(operation, precision, RIGHT[operation])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_another_ranks_result_is_refused(operation: str):
    def wrong(arrays: Sequence[Tensor], rank: int) -> Tensor:
        return RIGHT[operation](list(reversed(arrays)), rank) + (operation in ("all-reduce", "reduce-scatter"))

    with pytest.raises(WrongMessage, match=rf"{operation}: element (0|500) is .*, expected "):
        checked(operation, "fp32", wrong)


def test_one_wrong_number_is_found():
    def wrong(arrays: Sequence[Tensor], rank: int) -> Tensor:
        found = reduced(arrays, rank)
        found[1234] += 1
        return found

    with pytest.raises(WrongMessage, match="element 1234 is"):
        checked("all-reduce", "fp32", wrong)


def test_sums_of_sums_do_not_overflow():
    (spec,) = sweep_from(workload="collective", ranks=(4,), sizes=("1KB",), devices=("cpu",)).cells()
    message = Message(spec, torch.device("cpu"), 0)
    message.received.fill_(1)
    for _ in range(1000):
        message.received.mul_(4)  # as 4 equal ranks do
        message.settle()
    assert 1 <= float(message.received.max()) < 4**16
