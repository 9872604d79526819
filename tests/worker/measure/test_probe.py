"""The machine as torch reports it."""

from types import SimpleNamespace

import pytest
import torch

from cs336_tui.config.spec import PRECISIONS, canonical_device
from cs336_tui.worker.measure.probe import CPU_PRECISIONS, cuda_precisions, cudnn_name, nvml_uuid, probe, works
from cs336_tui.worker.workload.attention import attentions_on
from tests.worker.measure.cells import small_spec

UUID = "8f1c0a52-1111-2222-3333-444455556666"


def test_every_precision_that_a_cpu_is_said_to_do_works_and_none_on_a_device_that_is_not_there() -> None:
    assert tuple(p for p in PRECISIONS if works(p, "cpu")) == CPU_PRECISIONS
    assert not works("fp32", "mps") or torch.backends.mps.is_available()


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [((9, 0), set()), ((8, 9), set()), ((8, 0), {"fp8-mixed"}), ((7, 5), {"fp8-mixed", "tf32", "bf16", "bf16-mixed"})],
)
def test_a_gpu_is_offered_what_its_generation_has(capability: tuple[int, int], lacking: set[str]) -> None:
    assert set(cuda_precisions(capability, "some GPU")) == set(PRECISIONS) - lacking


def test_the_probe_describes_this_machine() -> None:
    found = probe()
    assert found.torch == torch.__version__
    assert found.threads == torch.get_num_threads()
    cpu = found.devices[0]
    assert (cpu.name, cpu.precisions) == ("cpu", CPU_PRECISIONS)
    assert cpu.label.startswith("CPU")
    assert cpu.attentions == attentions_on(torch.device("cpu"))
    assert cpu.memory_bytes
    assert cpu.memory_bytes > 2**28
    for device in found.devices:
        assert canonical_device(device.name) == device.name
        assert set(device.precisions) <= set(PRECISIONS)
        for precision in device.precisions:
            small_spec(device=device.name, precision=precision)
    for problem in found.problems:
        assert len(problem.splitlines()) == 1
    assert len(found.devices) > 1 or torch.version.cuda is None or found.problems


@pytest.mark.parametrize(
    ("visible", "index", "name", "uuid", "expected"),
    [
        ("", 0, "NVIDIA H100", UUID, f"GPU-{UUID}"),
        ("1,0", 1, "NVIDIA H100", UUID, f"GPU-{UUID}"),
        (f"GPU-{UUID}", 0, "NVIDIA H100", UUID, f"GPU-{UUID}"),
        ("MIG-aaaa", 0, "NVIDIA A100 MIG 1g.5gb", UUID, "MIG-aaaa"),
        ("", 0, "NVIDIA A100 MIG 1g.5gb", UUID, f"MIG-{UUID}"),
        ("", 0, "NVIDIA H100", f"GPU-{UUID}", f"GPU-{UUID}"),
        ("", 0, "some GPU", "", None),
    ],
)
def test_uuids_are_spelled_as_nvml_does(
    monkeypatch: pytest.MonkeyPatch, visible: str, index: int, name: str, uuid: str, expected: str | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml_uuid(index, SimpleNamespace(name=name, uuid=uuid)) == expected


@pytest.mark.parametrize(("number", "name"), [(91002, "9.10.2"), (90100, "9.1.0"), (8907, "8.9.7"), (8500, "8.5.0")])
def test_cudnn_versions(number: int, name: str) -> None:
    assert cudnn_name(number) == name
