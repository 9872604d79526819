"""The NVIDIA management library (NVML): opening it, saying why it will not open, finding a GPU by its UUID."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import msgspec

NO_LIBRARY = "no NVIDIA driver library (NVML) on this machine"

_WHY_CLOSED = {
    4: "this user may not talk to the NVIDIA driver",
    9: "the NVIDIA driver is not loaded",
    12: NO_LIBRARY,
    18: "the NVIDIA driver and its library differ in version; reload the driver or reboot",
    999: "the NVIDIA driver gives no reason; a container that has lost its GPU devices answers so, restart it",
}
"""What the codes of nvmlReturn_t mean when opening fails (NVML API reference, "Enumerations")."""

_UNKNOWN_TO_NVML = (2, 6)
"""Invalid argument, not found: the answers to a UUID or an index that no GPU has."""


class NvmlUnavailable(Exception):
    """NVML, or the GPU asked for, cannot be reached; the message is one line for people."""


class GpuIdentity(msgspec.Struct, frozen=True):
    """A GPU (``GPU-...``) or a MIG instance of one (``MIG-...``) as NVML names it."""

    uuid: str
    name: str | None = None


class NvmlReport(msgspec.Struct, frozen=True):
    """What NVML offers on this machine. `why` says in one line why there is no NVML, None when there is."""

    driver: str | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    why: str | None = None


def nvml_report() -> NvmlReport:
    """Driver version and GPUs, or why neither is known. Opens NVML for the moment; may take seconds without
    persistence mode."""
    try:
        nvml = Nvml()
    except NvmlUnavailable as error:
        return NvmlReport(why=str(error))
    try:
        return NvmlReport(nvml.driver(), tuple(nvml.gpus()))
    except nvml.api.NVMLError as error:
        return NvmlReport(nvml.driver(), why=f"NVML lists no GPUs: {error} (NVML error {error.value})")
    finally:
        nvml.close()


def nvml_driver() -> str | None:
    """Version of the NVIDIA driver, such as ``580.65.06``; None without NVML."""
    return nvml_report().driver


class Nvml:
    """An open NVML. Raises `NvmlUnavailable` when it cannot be opened. Handles are opaque and die with `close`."""

    def __init__(self) -> None:
        self.api: Any = import_pynvml()
        try:
            self.api.nvmlInit()
        except self.api.NVMLError as error:
            raise NvmlUnavailable(why_closed(error.value, str(error))) from None

    def close(self) -> None:
        """Never raises: a lost GPU can make even the shutdown fail."""
        with suppress(self.api.NVMLError):
            self.api.nvmlShutdown()

    def driver(self) -> str | None:
        try:
            return str(self.api.nvmlSystemGetDriverVersion())
        except self.api.NVMLError:
            return None

    def gpus(self) -> Iterator[GpuIdentity]:
        """Every GPU that answers, in NVML's order (not CUDA's), each followed by its MIG instances."""
        for index in range(self.api.nvmlDeviceGetCount()):
            with suppress(self.api.NVMLError):
                gpu = self.api.nvmlDeviceGetHandleByIndex(index)
                yield self.identify(gpu)
                for instance in self._mig_instances(gpu):
                    yield self.identify(instance)

    def identify(self, handle: Any) -> GpuIdentity:
        """Raises pynvml's NVMLError when the GPU does not answer."""
        uuid = str(self.api.nvmlDeviceGetUUID(handle))
        try:
            return GpuIdentity(uuid, str(self.api.nvmlDeviceGetName(handle)))
        except self.api.NVMLError:
            return GpuIdentity(uuid)

    def find(self, uuid: str | None) -> Any:
        """Handle of the GPU or MIG instance with this UUID; with None, of the first that CUDA would show.

        The prefix may be missing or be ``GPU-`` for a MIG instance, as CUDA's own UUIDs carry none. Raises
        `NvmlUnavailable`.
        """
        try:
            return self._first_visible() if uuid is None else self._by_uuid(uuid)
        except self.api.NVMLError as error:
            raise NvmlUnavailable(f"the GPU does not answer: {error} (NVML error {error.value})") from None

    def _by_uuid(self, uuid: str) -> Any:
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        for spelling in dict.fromkeys((uuid, f"GPU-{bare}", f"MIG-{bare}")):
            try:
                return self.api.nvmlDeviceGetHandleByUUID(spelling)
            except self.api.NVMLError as error:
                if error.value not in _UNKNOWN_TO_NVML:
                    raise
        raise NvmlUnavailable(f"NVML knows no GPU {uuid}")

    def _first_visible(self) -> Any:
        """CUDA's order is not NVML's, so an index is a guess, good until the device in use gives its UUID."""
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        first = first_visible(listed)
        if isinstance(first, str):
            # CUDA accepts a UUID cut short, NVML does not.
            return self._by_uuid(next((gpu.uuid for gpu in self.gpus() if gpu.uuid.startswith(first)), first))
        if first is None or first >= self.api.nvmlDeviceGetCount():
            setting = "no GPU on this machine" if listed is None else f"CUDA_VISIBLE_DEVICES={listed!r} shows no GPU"
            raise NvmlUnavailable(setting)
        gpu = self.api.nvmlDeviceGetHandleByIndex(first)
        return next(self._mig_instances(gpu), gpu)

    def _mig_instances(self, gpu: Any) -> Iterator[Any]:
        try:
            slots = self.api.nvmlDeviceGetMaxMigDeviceCount(gpu)
        except self.api.NVMLError:
            return
        for slot in range(slots):
            with suppress(self.api.NVMLError):  # an empty slot answers "not found"
                yield self.api.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)


def import_pynvml() -> ModuleType:
    """The module ``pynvml`` of nvidia-ml-py. Raises `NvmlUnavailable` when it is missing or another's.

    Up to release 11 the PyPI package ``pynvml`` put a package of the same name, with old bindings of its own,
    before it; from 12 on it only prints a warning at import, which would land on the screen.
    """
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    try:
        import pynvml
    except ImportError:
        raise NvmlUnavailable("the Python package nvidia-ml-py is not installed") from None
    if hasattr(pynvml, "__path__") or not hasattr(pynvml, "nvmlMemory_v2"):
        raise NvmlUnavailable(
            "the module pynvml is not nvidia-ml-py's; run: pip uninstall pynvml; "
            "pip install --force-reinstall nvidia-ml-py"
        )
    module: ModuleType = pynvml
    return module


def why_closed(code: int, text: str) -> str:
    """One line saying why NVML did not open; `text` is NVML's own wording for codes without a line here."""
    why = _WHY_CLOSED.get(code, f"NVML does not open: {text}")
    return why if code == 12 else f"{why} (NVML error {code})"


def first_visible(listed: str | None) -> int | str | None:
    """The first GPU that a value of ``CUDA_VISIBLE_DEVICES`` names: an index, the beginning of a UUID, or None
    when the value hides every GPU. `listed` is None when the variable is not set, which hides nothing.

    The list ends at its first invalid entry (CUDA C++ programming guide, "CUDA environment variables").
    """
    if listed is None:
        return 0
    first = listed.split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return first
    return int(first) if first.isdecimal() else None
