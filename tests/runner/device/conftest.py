from collections.abc import Callable

import pynvml
import pytest

from tests.runner.device.fake_nvml import FakeGpu, FakeNvmlLibrary

Install = Callable[[FakeNvmlLibrary], FakeNvmlLibrary]


@pytest.fixture
def install_nvml(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a library in place of the one that pynvml loads."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(library: FakeNvmlLibrary) -> FakeNvmlLibrary:
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return library

    return install


@pytest.fixture
def nvml_library(install_nvml: Install) -> FakeNvmlLibrary:
    """Two healthy GPUs, GPU-a and GPU-b."""
    return install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a"), FakeGpu("GPU-b", name="NVIDIA L4", used=2 * 1024**3)))


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the library, whatever this one has."""

    def not_found(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", not_found)
