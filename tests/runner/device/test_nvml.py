"""Opening NVML and finding GPUs, through the real pynvml over a replaced library."""

import pytest

from cs336_tui.events.environment import GpuSample
from cs336_tui.runner.device.nvml import NO_LIBRARY, Nvml, NvmlUnavailable, nvml_report
from tests.loading import python
from tests.runner.device import fake_nvml as fake
from tests.runner.device.conftest import Install
from tests.runner.device.fake_nvml import FakeGpu, FakeNvmlLibrary


def test_report_lists_driver_and_gpus_and_closes_nvml(nvml_library: FakeNvmlLibrary) -> None:
    nvml_library.gpus[0].mig = [None, fake.mig_instance("MIG-1"), None]
    report = nvml_report()
    assert report.driver == nvml_report(gpus=False).driver == "580.65.06"
    assert report.gpus == (
        GpuSample(uuid="GPU-a", name="NVIDIA H100 80GB HBM3"),
        GpuSample(uuid="MIG-1", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        GpuSample(uuid="GPU-b", name="NVIDIA L4"),
    )
    assert report.why is None
    assert nvml_library.open == 0


def test_a_gpu_that_does_not_answer_is_left_out_of_the_list_and_told(nvml_library: FakeNvmlLibrary) -> None:
    nvml_library.gpus[0].errors["*"] = fake.GPU_IS_LOST
    nvml_library.gpus.append(FakeGpu("GPU-c", errors={"handle": fake.NO_PERMISSION}))
    nvml_library.gpus.append(FakeGpu("GPU-d", errors={"nvmlDeviceGetName": fake.UNKNOWN}))
    nvml_library.gpus.append(FakeGpu("GPU-e", errors={"handle": 16}))
    report = nvml_report()
    assert report.gpus == (GpuSample(uuid="GPU-b", name="NVIDIA L4"), GpuSample(uuid="GPU-d"))
    assert report.lost == (
        "GPU 0 does not answer: the GPU is lost: it fell off the bus or became inaccessible (NVML error 15)",
        "GPU 2 does not answer: Insufficient Permissions (NVML error 4)",
        "GPU 4 does not answer: the GPU must be reset (NVML error 16)",
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (fake.NO_PERMISSION, "may not talk to the NVIDIA driver"),
        (fake.DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        (fake.VERSION_MISMATCH, "differ in version"),
        (fake.UNKNOWN, "container"),
        (17, "operating system has blocked the request"),
        (27, "error 27"),
    ],
)
def test_every_way_not_to_open_has_one_line_with_its_code(install_nvml: Install, code: int, words: str) -> None:
    install_nvml(FakeNvmlLibrary(init_error=code))
    report = nvml_report()
    assert (report.driver, report.gpus) == (None, ())
    assert words in report.why
    assert f"(NVML error {code})" in report.why
    assert "\n" not in report.why


@pytest.mark.usefixtures("no_nvml")
def test_no_library_is_a_plain_fact() -> None:
    assert (nvml_report().why, nvml_report().driver) == (NO_LIBRARY, None)


def test_a_library_too_old_to_open_says_so(install_nvml: Install) -> None:
    install_nvml(FakeNvmlLibrary(missing=frozenset({"nvmlInitWithFlags"})))
    assert "Function Not Found" in (nvml_report().why or "")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("GPU-b", "GPU-b"),
        ("b", "GPU-b"),  # as CUDA gives it
        ("MIG-1", "MIG-1"),
        ("1", "MIG-1"),
        ("GPU-1", "MIG-1"),  # CUDA gives an instance's UUID, and a caller its usual prefix
    ],
)
def test_gpus_are_found_by_uuid(nvml_library: FakeNvmlLibrary, asked: str, found: str) -> None:
    nvml_library.gpus[0].mig = [fake.mig_instance("MIG-1")]
    nvml = Nvml()
    assert nvml.identify(nvml.find(asked)).uuid == found


def test_an_unknown_uuid_is_named_and_a_gpu_that_is_there_but_dead_is_not_called_unknown(
    nvml_library: FakeNvmlLibrary,
) -> None:
    nvml_library.gpus[1].errors["handle"] = fake.GPU_IS_LOST
    with pytest.raises(NvmlUnavailable, match="NVML knows no GPU GPU-z"):
        Nvml().find("GPU-z")
    with pytest.raises(NvmlUnavailable, match=r"does not answer: GPU is lost \(NVML error 15\)"):
        Nvml().find("GPU-b")


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (None, "GPU-a1"),
        ("0", "GPU-a1"),
        (" 1 ,0", "MIG-1"),
        ("GPU-a2,0", "GPU-a2"),
        ("MIG-2", "MIG-2"),
        ("GPU-a2-e", "GPU-a2-e9"),  # cut short
    ],
)
def test_without_a_uuid_the_first_visible_gpu_is_taken(
    install_nvml: Install, monkeypatch: pytest.MonkeyPatch, listed: str | None, found: str
) -> None:
    split = FakeGpu("GPU-a2", mig=[None, fake.mig_instance("MIG-1"), fake.mig_instance("MIG-2")])
    install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a1"), split, FakeGpu("GPU-a2-e9")))
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    nvml = Nvml()
    assert nvml.identify(nvml.find(None)).uuid == found


@pytest.mark.parametrize("listed", ["", "-1", "2", "none", "x,0", None])
def test_a_driver_without_gpus_and_hidden_ones(
    install_nvml: Install, monkeypatch: pytest.MonkeyPatch, listed: str | None
) -> None:
    gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-b")] if listed is not None else []
    install_nvml(FakeNvmlLibrary(*gpus))
    why = "no GPU on this machine"
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        why = f"CUDA_VISIBLE_DEVICES='{listed}' shows no GPU"
    with pytest.raises(NvmlUnavailable, match=why):
        Nvml().find(None)


@pytest.mark.parametrize("shim", ["pynvml/__init__.py", "pynvml.py"])
def test_another_pynvml_is_refused_with_the_remedy(tmp_path, shim: str) -> None:
    (tmp_path / shim).parent.mkdir(exist_ok=True)
    (tmp_path / shim).write_text("class NVMLError(Exception): pass\n")
    asked = "from cs336_tui.runner.device.nvml import nvml_report; print(nvml_report().why)"
    run = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {asked}")
    assert "not nvidia-ml-py's" in run.stdout
    assert run.stdout.count("\n") == 1
    assert run.stderr == ""
