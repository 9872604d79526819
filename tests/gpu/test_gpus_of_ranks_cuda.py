"""The GPU of each rank, as NVML tells it while a cell of two ranks runs; ranks over nodes, by two processes in place of
two nodes, each of which sees one GPU."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
import torch

from cs336_tui.events.events import DeviceSampled
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.node_process import Node
from cs336_tui.runner.nodes import Nodes
from cs336_tui.worker.measure.probe import nvml_uuid
from tests.gpu.cells import needs_nvml, trained_spec
from tests.runner.running import Running
from tests.runner.test_nodes import command
from tests.runner.test_ranks import CODE
from tests.watching import Watch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")


@pytest.mark.numbers
@needs_nvml
def test_each_ranks_gpu_is_sampled_and_holds_its_memory(tmp_path: Path) -> None:
    uuids = [nvml_uuid(index, torch.cuda.get_device_properties(index)) for index in range(2)]
    if None in uuids:
        pytest.skip("this torch knows no UUIDs")
    watch = Watch()
    bench = Bench(watch, session_dir=tmp_path, device_interval_s=0.1)
    bench.prepare()
    with closing(bench):
        bench.run([trained_spec(parallel="ddp", steps_for=3.0, measure_steps=10_000)], "")
    (cell,) = watch.state.cells.values()
    assert (cell.status, cell.finished.error) == ("ok", None)
    several = [event for event in watch.of(DeviceSampled) if event.other_gpus]
    assert several
    for event in several:
        assert [gpu.uuid for gpu in (event.gpu, *event.other_gpus)] == uuids
    gpus = zip(*((event.gpu, *event.other_gpus) for event in several), strict=True)
    for samples, peak in zip(gpus, cell.finished.rank_peak_bytes, strict=True):
        used = [gpu.memory_used_bytes for gpu in samples if gpu and gpu.memory_used_bytes is not None]
        assert not used or max(used) >= peak
        assert all(gpu and gpu.other_processes in (None, ()) for gpu in samples)
    assert all(rank.pid for rank in several[-1].host.ranks)


@pytest.mark.numbers
@pytest.mark.skipif(torch.cuda.device_count() < 3, reason="needs three CUDA GPUs")
@pytest.mark.parametrize("parallel", ["none", "ddp", "fsdp2"])
def test_a_rank_uses_no_gpu_but_its_own(tmp_path: Path, parallel: str) -> None:
    own = {"model": "adapters:OnItsGpu", "model_path": (str(CODE),), "device": "cuda:1"}
    runner = Running(tmp_path)
    with closing(runner.bench):
        (cell,) = runner.run(trained_spec(parallel=parallel, **own))
    assert (cell.status, cell.finished.error) == ("ok", None)


def on_its_gpu(node: Node) -> Sequence[str]:
    return ["env", f"CUDA_VISIBLE_DEVICES={node.name}", *command(node)]


@pytest.mark.numbers
def test_ranks_with_a_gpu_of_each_node_train_what_one_process_does(tmp_path: Path) -> None:
    watch = Watch()
    nodes = Nodes([Node(name, "127.0.0.1") for name in ("0", "1")], on_its_gpu, most=1)
    bench = Bench(watch, session_dir=tmp_path, device_interval_s=0, nodes=nodes)
    bench.prepare()
    ways = [("ddp", "nccl"), ("fsdp2", "nccl"), ("ddp", "gloo")]
    with closing(bench):
        bench.run([trained_spec(parallel=way, backend=by) for way, by in ways], "a command")
    cells = watch.state.cells.values()
    assert [cell.finished.error for cell in cells if cell.status != "ok"] == []
    assert all(cell.finished.rank_nodes == ("0", "1") for cell in cells)
    samples = [sample for sample, _ in watch.state.devices if sample.gpu and sample.other_gpus]
    assert samples, "no sample has the GPUs of both ranks"
    assert all(sample.gpu.uuid != sample.other_gpus[0].uuid for sample in samples)
