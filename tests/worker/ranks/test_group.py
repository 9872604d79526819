"""The process group of ranks, by stand-ins for torch's: on which GPU its barrier runs, what a rank tells that is asked,
its threads on a CPU; and the check of a collective, with ranks that are played by this process."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cs336_tui.config.choices import sweep_from
from cs336_tui.worker.ranks import STACK_SIGNAL, Place
from cs336_tui.worker.ranks.group import OPERATIONS, Group, Message, WrongMessage
from cs336_tui.worker.workload import building
from tests.watching import small_spec


@pytest.mark.parametrize(
    ("backend", "device", "devices"), [("nccl", "cuda:3", [3]), ("gloo", "cuda:3", None), ("gloo", "cpu", None)]
)
def test_the_barrier_runs_on_the_ranks_own_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, device: str, devices: list[int] | None
) -> None:
    set_devices: list[torch.device] = []
    barriers: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", set_devices.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: set_devices[-1].index)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "barrier", lambda device_ids=None: barriers.append(device_ids))
    place = Place(rank=1, ranks=2, meeting=str(tmp_path / "meeting"), stacks=str(tmp_path / "stacks"))
    group = Group(place, torch.device(device))
    with group.joined(backend):
        group.barrier()
    assert barriers == [devices]


def test_a_rank_that_is_asked_writes_the_stacks_of_all_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd compiles backward in the thread of a GPU, while the main thread waits."""
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    stacks = tmp_path / "stacks"
    began, over = threading.Event(), threading.Event()

    def compiles_backward() -> None:
        began.set()
        over.wait()

    thread = threading.Thread(target=compiles_backward)
    thread.start()
    began.wait()
    place = Place(rank=1, ranks=2, meeting=str(tmp_path / "meeting"), stacks=str(stacks))
    with Group(place, torch.device("cpu")).joined("gloo"):
        os.kill(os.getpid(), STACK_SIGNAL)
    over.set()
    thread.join()
    others, _, asked = stacks.read_text().partition("Current thread")
    assert "in test_a_rank_that_is_asked_writes_the_stacks_of_all_its_threads" in asked
    assert "in compiles_backward" in others


def test_ranks_share_the_threads_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_own_threads", lambda: 16)
    spec = small_spec(threads=None, ranks=4)
    assert (building.threads_of(spec), building.threads_of(spec, 2)) == (4, 8)  # of four over two nodes two are here
    assert building.threads_of(small_spec(threads=None)) is None


RANKS = 3


def sent_by(message: Message, rank: int) -> Tensor:
    """The numbers that a rank sends in its check: (i + p + 3 r) mod 11 at place i of part p."""
    parts = [rank] if message.sent.numel() < message.received.numel() else range(RANKS)
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


def a_message(operation: str, ranks: int, size: str, rank: int, precision: str = "fp32") -> Message:
    axes = {"collectives": (operation,), "ranks": (ranks,), "sizes": (size,), "precisions": (precision,)}
    (spec,) = sweep_from(workload="collective", **axes, devices=("cpu",)).cells()
    return Message(spec, torch.device("cpu"), rank)


def checked(operation: str, precision: str, play: Callable[[Sequence[Tensor], int], Tensor], rank: int = 1) -> None:
    message = a_message(operation, RANKS, "6KB", rank, precision)

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
    message = a_message("all-reduce", 4, "1KB", 0)
    message.received.fill_(1)
    for _ in range(1000):
        message.received.mul_(4)  # as 4 equal ranks do
        message.settle()
    assert 1 <= float(message.received.max()) < 4**16
