"""Words on the GPUs of a machine: numbers, figures, and why a figure is missing."""

import pytest

from cs336_tui.analysis.gpu_words import doubtful_reasons, figures, notes, numbered
from cs336_tui.events.environment import GpuProcess, GpuSample
from tests.samples import a_gpu


def mig(uuid: str) -> GpuSample:
    return GpuSample(uuid=f"MIG-{uuid}", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", memory_used_bytes=10**9)


def told(gpu: GpuSample) -> dict[str, str]:
    return {figure.label: figure.text for figure in figures(gpu)}


def test_gpus_have_nvidia_smis_numbers_and_mig_instances_their_own() -> None:
    gpus = [a_gpu("GPU-a"), mig("a0"), mig("a1"), a_gpu("GPU-b"), mig("b0")]
    assert [(each.number, each.title) for each in numbered(gpus)] == [
        ("0", "GPU 0 of 2"),
        ("0/0", "GPU 0 of 2, MIG 0 of 2"),
        ("0/1", "GPU 0 of 2, MIG 1 of 2"),
        ("1", "GPU 1 of 2"),
        ("1/0", "GPU 1 of 2, MIG 0 of 1"),
    ]
    assert [each.title for each in numbered([a_gpu(str(n)) for n in range(8)])][7] == "GPU 7 of 8"
    assert numbered([]) == ()


def test_a_gpus_figures_and_no_note_where_it_tells_all() -> None:
    gpu = a_gpu("GPU-a", busy=0.5, clock_reasons=("software power cap",))
    assert told(gpu) == {
        "memory": "22.0/85.0 GB",
        "util": "50 %",
        "power": "335/700 W",
        "temp": "50 °C",
        "clocks": "1980/2619 MHz",
        "limited": "software power cap",
        "others": "none",
    }
    assert notes(gpu) == []
    crowded = a_gpu("GPU-a", other_processes=(GpuProcess(pid=1, memory_bytes=2 * 10**9), GpuProcess(pid=2)))
    assert told(crowded)["others"] == "! 2 processes, 2.00 GB"


def test_heat_and_a_failing_power_supply_raise_doubt_and_a_power_cap_none() -> None:
    ordinary = ("idle", "software power cap", "application clocks")
    for reason in (*ordinary, "hardware slowdown", "software thermal", "hardware thermal", "power brake"):
        gpu, doubt = a_gpu("GPU-a", clock_reasons=("idle", reason)), reason not in ordinary
        assert doubtful_reasons(gpu) == ((reason,) if doubt else ())
        assert next(figure for figure in figures(gpu) if figure.label == "limited").is_doubt is doubt


UNIFIED = ["unified memory: GPU and CPU share the host's memory, which the host's figures tell"]


@pytest.mark.parametrize(
    ("gpu", "missing", "said"),
    [
        (mig("a"), "util", [
            "MIG instance: NVML tells utilisation, power, temperature and clocks of the whole GPU only",
            "others n/a: in a container processes cannot be told apart, or the driver lists none",
        ]),
        *((a_gpu("GPU-a", name=name, memory_used_bytes=None, memory_total_bytes=None), "memory", UNIFIED)
          for name in ("Orin (nvgpu)", "NVIDIA GB10", "NVIDIA Jetson AGX Thor")),
        (a_gpu("GPU-a", name="NVIDIA GH200 480GB"), None,
         ["coherent memory: the GPU reaches the host's memory as well; the figure is its own HBM"]),
        (a_gpu("GPU-a", power_w=None, sm_clock_mhz=None, memory_clock_mhz=None), "clocks",
         ["power, clocks n/a: this GPU or its driver does not tell"]),
        (GpuSample(uuid="GPU-a", name="NVIDIA L4"), "memory", []),  # one that tells nothing has no notes
    ],
)  # fmt: skip
def test_why_a_figure_is_missing_or_means_something_else_is_said(
    gpu: GpuSample, missing: str | None, said: list[str]
) -> None:
    assert missing is None or told(gpu)[missing] == "n/a"
    assert notes(gpu) == said
