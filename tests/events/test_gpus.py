"""GPUs by name: spelling is free, an ambiguous name is refused. Measured peaks: their rates, and the device and
settings that they are kept for."""

from pathlib import Path

import msgspec
import pytest

from cs336_tui.config.spec import PRECISIONS
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.gpus import UnknownGpu, find_gpu, gpu_of_label, known_gpus
from cs336_tui.events.peaks import PeakCache, peak_key
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT


@pytest.mark.parametrize(
    ("meant", "said"),
    [
        ("H100 SXM 80GB", ["H100", "h100", "H100 80GB", "h100 80 gb", "H100-SXM5-80GB", "NVIDIA H100 80GB HBM3"]),
        ("RTX 4090 24GB", ["RTX 4090", "rtx4090", "4090"]),
        ("A100 SXM 80GB", ["a100-80gb", "NVIDIA A100-SXM4-80GB"]),
        ("A100 SXM 40GB", ["a100-40gb", "NVIDIA A100-SXM4-40GB"]),
        ("A10 24GB", ["a10"]),
        ("V100 SXM2 32GB", ["V100 32GB"]),
        ("RTX 6000 Ada 48GB", ["6000 Ada", "RTX 6000", "NVIDIA RTX 6000 Ada Generation"]),
        ("RTX A6000 48GB", ["A6000", "NVIDIA RTX A6000"]),
        ("RTX A5000 24GB", ["A5000", "NVIDIA RTX A5000"]),
        ("RTX 4070 Laptop 8GB", ["4070 laptop", "NVIDIA GeForce RTX 4070 Laptop GPU"]),
        ("RTX PRO 6000 Workstation 96GB", ["RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"]),
        ("RTX PRO 6000 Server 96GB", ["RTX PRO 6000 Server", "NVIDIA RTX PRO 6000 Blackwell Server Edition"]),
        ("H100 PCIe 80GB", ["NVIDIA H100 PCIe"]),
        ("H100 NVL 94GB", ["NVIDIA H100 NVL"]),
        ("H200 SXM 141GB", ["NVIDIA H200"]),
        ("H200 NVL 141GB", ["NVIDIA H200 NVL"]),
        ("GH200 96GB", ["NVIDIA GH200 480GB"]),
        ("B200 SXM 180GB", ["NVIDIA B200"]),
        ("A100 PCIe 80GB", ["NVIDIA A100 80GB PCIe"]),
        ("A100 PCIe 40GB", ["NVIDIA A100-PCIE-40GB"]),
        ("A10G 24GB", ["NVIDIA A10G"]),
        ("L4 24GB", ["NVIDIA L4"]),
        ("L40S 48GB", ["NVIDIA L40S"]),
        ("RTX 3090 24GB", ["NVIDIA GeForce RTX 3090"]),
        ("RTX 5090 32GB", ["NVIDIA GeForce RTX 5090"]),
        ("GB200 186GB", ["NVIDIA GB200"]),
        ("L40 48GB", ["NVIDIA L40"]),
        ("A30 24GB", ["NVIDIA A30"]),
        ("RTX 3080 10GB", ["NVIDIA GeForce RTX 3080"]),
        ("T4 16GB", ["Tesla T4"]),
        ("V100 SXM2 16GB", ["Tesla V100-SXM2-16GB"]),
        ("V100 PCIe 32GB", ["Tesla V100-PCIE-32GB"]),
    ],
)
def test_people_need_not_know_the_whole_name_and_torchs_is_known(meant: str, said: list[str]) -> None:
    assert {name: find_gpu(name).name for name in said} == dict.fromkeys(said, meant)


@pytest.mark.parametrize(
    "label",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "Quadro RTX 6000",
        "NVIDIA GeForce RTX 4070",
        "NVIDIA GeForce RTX 4070 Ti",
        "NVIDIA GeForce RTX 3080 Ti",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA RTX A5000 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA RTX PRO 5000 Blackwell",
        "NVIDIA A30X",
        "H300",
        "80GB",
        "RTX",
        "",
    ],
)
def test_what_only_resembles_a_known_one_is_not_taken_for_it(label: str) -> None:
    assert gpu_of_label(label) is None


def test_an_unknown_name_has_the_nearest_or_some_and_the_command_for_all_in_one_line() -> None:
    with pytest.raises(UnknownGpu, match=r"^GPU H10: did you mean H100 SXM 80GB, H100 PCIe 80GB or H100 NVL 94GB"):
        find_gpu("H10")
    with pytest.raises(UnknownGpu) as error:
        find_gpu("quantum")
    said = str(error.value)
    assert said.startswith("GPU quantum: expected one of H100 SXM 80GB, ")
    assert said.endswith(f" and {len(known_gpus()) - 5} more; `cs336-tui estimate --gpu list` lists them")
    assert "\n" not in said


def test_every_name_means_itself() -> None:
    assert [find_gpu(gpu.name) for gpu in known_gpus()] == list(known_gpus())
    assert all(gpu.source for gpu in known_gpus())


def test_peaks_are_dense_and_by_the_format_of_the_matrix_products() -> None:
    h100 = find_gpu("H100")
    assert [h100.peak_flops(precision) for precision in ("fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16")] == [
        67e12, 494.7e12, 989.4e12, 989.4e12, 989.4e12,
    ]  # fmt: skip
    assert h100.bandwidth_bytes_per_s == 3.35e12
    assert 79 * 2**30 < h100.memory_bytes < 80 * 2**30


def test_of_two_products_with_one_chip_each_has_its_own_figures() -> None:
    """NVIDIA's Blackwell data sheet: 7.7 TB/s and 75 TFLOP/s of a GPU of HGX B200, 8 and 80 of one of GB200 NVL72."""
    b200, gb200 = find_gpu("B200"), find_gpu("GB200")
    assert (b200.bandwidth_gb_per_s, b200.tflops["fp32"]) == (7700, 75)
    assert (gb200.bandwidth_gb_per_s, gb200.tflops["fp32"]) == (8000, 80)
    assert "HGX B200" in b200.source
    assert "GB200 NVL72" in gb200.source


def test_dense_figures_keep_the_ratios_of_their_architecture() -> None:
    """A format of half the width has twice the rate, whatever the chip; a figure with sparsity would show here."""
    for gpu in known_gpus():
        for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8")):
            if {wide, narrow} <= gpu.tflops.keys():
                assert gpu.tflops[narrow] == pytest.approx(2 * gpu.tflops[wide], rel=0.05), gpu.name


@pytest.mark.parametrize("name", ["T4", "V100"])
def test_before_ampere_there_is_neither_tf32_nor_bf16(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.precisions == ("fp32", "fp16-mixed")
    assert [gpu.peak_flops(each) is None for each in ("bf16", "tf32", "fp16-mixed")] == [True, True, False]


@pytest.mark.parametrize(("name", "offered"), [("A100", False), ("A10", False), ("L4", True), ("H100", True)])
def test_float8_begins_with_compute_capability_8_9(name: str, offered: bool) -> None:
    gpu = find_gpu(name)
    assert set(gpu.precisions) == set(PRECISIONS) - (set() if offered else {"fp8-mixed"})
    peak, wider = gpu.peak_flops("fp8-mixed"), gpu.peak_flops("bf16")
    assert (peak is not None) == offered
    assert wider
    assert peak is None or peak == pytest.approx(2 * wider, rel=0.02)


def test_figures_are_plausible() -> None:
    for gpu in known_gpus():
        nominal = int(gpu.name.split()[-1].removesuffix("GB"))
        assert 0.85 * nominal <= gpu.memory_gib <= nominal, gpu.name
        assert 10 <= gpu.tflops["fp32"] <= 130 or gpu.name == "T4 16GB"
        formats = [gpu.tflops[name] for name in ("fp32", "tf32", "bf16") if name in gpu.tflops]
        assert formats == sorted(formats), gpu.name


KEY = peak_key(ENVIRONMENT, "cuda:0", "fp32")


def test_the_peak_is_the_best_sizes_median_and_a_copy_counts_twice() -> None:
    peak = made_peak(50e12, 2.5e12)
    assert peak.best.size == 4096
    assert peak.best.flops_per_s == pytest.approx(50e12)
    assert peak.copy.bytes_per_s == pytest.approx(2 * peak.copy.bytes / peak.copy.median_s) == pytest.approx(2.5e12)


def test_what_was_put_last_is_found_again_by_another_process_and_a_file_that_is_no_peak_is_none(tmp_path: Path) -> None:
    later, cache = made_peak(60e12, note="sizes from 8192 on were left out: too slow"), PeakCache(tmp_path)
    assert cache.get(KEY) is None
    for peak in (made_peak(50e12), later):
        cache.put(KEY, peak)
    assert cache.get(KEY) == PeakCache(tmp_path).get(KEY) == later
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    for text in ('{"key": 1', whole.replace(KEY.hardware, "another that comes to the same name")):
        file.write_text(text)
        assert PeakCache(tmp_path).get(KEY) is None


def test_a_folder_that_cannot_be_written_loses_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = PeakCache(tmp_path / "file" / "peaks")
    cache.put(KEY, made_peak())
    assert cache.get(KEY) == made_peak()
    assert PeakCache(tmp_path / "file" / "peaks").get(KEY) is None


def test_a_gpu_is_known_by_its_uuid_wherever_it_sits() -> None:
    (gpu,) = (device for device in ENVIRONMENT.devices if device.uuid)
    moved = msgspec.structs.replace(
        ENVIRONMENT, host="other", threads=4, devices=(msgspec.structs.replace(gpu, name="cuda:1"),)
    )
    assert peak_key(moved, "cuda:1", "fp32") == KEY
    twin = msgspec.structs.replace(ENVIRONMENT, devices=(msgspec.structs.replace(gpu, uuid="GPU-1"),))
    assert peak_key(twin, "cuda:0", "fp32") != KEY


def test_a_cpu_is_known_by_its_host_processor_and_threads() -> None:
    key = peak_key(ENVIRONMENT, "cpu", "fp32")
    assert key == peak_key(ENVIRONMENT, "cpu", "fp32", ENVIRONMENT.threads)
    others = [
        peak_key(ENVIRONMENT, "cpu", "fp32", 1),
        peak_key(ENVIRONMENT, "cpu", "bf16"),
        *(
            peak_key(msgspec.structs.replace(ENVIRONMENT, **change), "cpu", "fp32")
            for change in ({"host": "other"}, {"cpu": "Other CPU"}, {"cpu_count": 2}, {"torch": "2.14.0"})
        ),
    ]
    assert len({key, *others}) == 7


def test_a_device_without_an_identity_is_told_by_its_place() -> None:
    twins = tuple(DeviceInfo(name=f"cuda:{index}", label="Some GPU", precisions=("fp32",)) for index in range(2))
    machine = msgspec.structs.replace(ENVIRONMENT, devices=twins)
    assert peak_key(machine, "cuda:0", "fp32") != peak_key(machine, "cuda:1", "fp32")
