"""The process group of ranks, by stand-ins for torch's: on which GPU its barrier runs, and what a rank tells that is
asked."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cs336_tui.worker.ranks import STACK_SIGNAL, Place
from cs336_tui.worker.ranks.group import Group


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
