"""Ranks over nodes on two real GPUs: two processes in place of two nodes, each of which sees one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cs336_tui.runner.bench import Bench
from cs336_tui.runner.node_process import Node
from cs336_tui.runner.nodes import Nodes
from tests.gpu.cells import trained_spec
from tests.runner.test_nodes import command
from tests.watching import Watch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")


def on_its_gpu(node: Node) -> Sequence[str]:
    return ["env", f"CUDA_VISIBLE_DEVICES={node.name}", *command(node)]


@pytest.mark.numbers
def test_ranks_with_a_gpu_of_each_node_train_what_one_process_does(tmp_path: Path) -> None:
    watch = Watch()
    nodes = Nodes([Node(name, "127.0.0.1") for name in ("0", "1")], on_its_gpu, most=1)
    bench = Bench(watch, session_dir=tmp_path, device_interval_s=0, nodes=nodes)
    bench.prepare()
    ways = [("ddp", "nccl"), ("fsdp2", "nccl"), ("ddp", "gloo")]
    try:
        bench.run([trained_spec(parallel=way, backend=by) for way, by in ways], "a command")
    finally:
        bench.close()
    cells = watch.state.cells.values()
    assert [cell.finished.error for cell in cells if cell.status != "ok"] == []
    assert all(cell.finished.rank_nodes == ("0", "1") for cell in cells)
    samples = [sample for sample, _ in watch.state.devices if sample.gpu and sample.other_gpus]
    assert samples, "no sample has the GPUs of both ranks"
    assert all(sample.gpu.uuid != sample.other_gpus[0].uuid for sample in samples)
