"""Opens NVML and finds GPUs in it. A call may never return: it is made on a thread, and waited for so long."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from cs336_tui.events.environment import GpuSample
from cs336_tui.runner.pipes import Aside

ANSWER_S = 2.0
"""Limit of a call of NVML, seconds: on a lost GPU, or behind a driver's lock, one may never return."""

NO_LIBRARY = "no NVIDIA driver library (NVML) on this machine"

_WHY_CLOSED = {
    4: "this user may not talk to the NVIDIA driver",
    9: "the NVIDIA driver is not loaded",
    12: NO_LIBRARY,
    18: "the NVIDIA driver and its library differ in version; reload the driver or reboot",
    999: "the NVIDIA driver gives no reason; a container that has lost its GPU devices answers so, restart it",
}
"""Meanings of nvmlReturn_t when opening fails (NVML API reference, "Enumerations")."""

LOST = {
    1: "NVML was shut down",
    15: "the GPU is lost: it fell off the bus or became inaccessible",
    16: "the GPU must be reset",
    28: "the GPU is gone",
}
"""Codes after which a handle gives no more answers."""

_NO_GPU = "no GPU on this machine"

_UNKNOWN_TO_NVML = (2, 6)  # invalid argument, not found: the codes for a UUID or an index that no GPU has


T = TypeVar("T")


class NvmlUnavailable(Exception):
    """NVML, or the GPU asked for, cannot be reached; the message is one line for people."""


class NvmlSilent(NvmlUnavailable):
    """NVML has not answered the call `name` in time; `waited` is False if another was asked for, and not made."""

    def __init__(self, name: str, *, waited: bool) -> None:
        super().__init__(f"NVML has not answered {name} within {ANSWER_S:g} s")
        self.waited = waited


class NvmlReport(msgspec.Struct, frozen=True):
    """NVML on this machine; `why` says in one line why there is no NVML or no GPU."""

    driver: str | None = None
    gpus: tuple[GpuSample, ...] = ()
    """Their names alone."""
    why: str | None = None
    lost: tuple[str, ...] = ()
    """GPUs that do not answer, a line each."""


def nvml_report(*, gpus: bool = True) -> NvmlReport:
    """The driver's version and, with `gpus`, the GPUs, which may take seconds without persistence mode."""
    driver = None
    try:
        with closing(Nvml()) as nvml:
            with suppress(nvml.api.NVMLError):
                driver = str(nvml.api.nvmlSystemGetDriverVersion())
            try:
                found, lost = nvml.gpus() if gpus else ([], [])
            except nvml.api.NVMLError as error:
                return NvmlReport(driver, why=f"NVML lists no GPUs: {error} (NVML error {error.value})")
            return NvmlReport(driver, tuple(found), _NO_GPU if gpus and not found and not lost else None, tuple(lost))
    except NvmlUnavailable as error:
        return NvmlReport(driver, why=str(error))


class _Api:
    """A module's attributes; its functions are called by `call`, which is given a name and a function."""

    def __init__(self, module: ModuleType, call: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._module, self._call = module, call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not inspect.isfunction(found):
            return found
        return lambda *args, **options: self._call(name, lambda: found(*args, **options))


class Nvml:
    """NVML, opened at the first call of a function of `api`, which is pynvml. Handles are opaque and die with `close`.
    A function raises `NvmlSilent` without an answer within `ANSWER_S`, `NvmlUnavailable` when NVML cannot be opened,
    and pynvml's errors. Use it from one thread: calls are made one by one on a daemon thread, and while one does not
    return, others are refused. The constructor raises `NvmlUnavailable` without pynvml."""

    def __init__(self) -> None:
        self._module: Any = import_pynvml()
        self.api: Any = _Api(self._module, self._asked)
        self._aside: Aside | None = None
        self._last: tuple[str, Future[Any]] | None = None
        self._is_open = False
        self._until: float | None = None

    @property
    def is_stuck(self) -> bool:
        """True while a call has not returned."""
        return self._last is not None and not self._last[1].done()

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """All calls made meanwhile are together waited for no longer than `ANSWER_S`."""
        self._until = monotonic() + ANSWER_S
        try:
            yield
        finally:
            self._until = None

    def close(self) -> None:
        """Never raises: a lost GPU can make even the shutdown fail. NVML is opened again by the next call."""
        patience_s = 0.0 if self.is_stuck else self._patience_s()
        call = self._begin("nvmlShutdown", self._shut_down)
        if self._aside is not None:
            self._aside.close(within_s=0.0)
        self._aside = None
        wait([call], patience_s)

    def _patience_s(self) -> float:
        return ANSWER_S if self._until is None else max(min(ANSWER_S, self._until - monotonic()), 0.0)

    def _asked(self, name: str, function: Callable[[], Any]) -> Any:
        if not self._is_open:
            self._call("nvmlInit", self._open)
        return self._call(name, function)

    def _call(self, name: str, function: Callable[[], T]) -> T:
        if self._last is not None and self.is_stuck:
            raise NvmlSilent(self._last[0], waited=False)
        call = self._begin(name, function)
        if not wait([call], self._patience_s()).done:
            raise NvmlSilent(name, waited=True)
        return call.result()

    def _begin(self, name: str, function: Callable[[], T]) -> Future[T]:
        self._aside = self._aside or Aside("nvml")
        call = self._aside.call(function)
        self._last = name, call
        return call

    def _open(self) -> None:
        try:
            self._module.nvmlInit()
        except self._module.NVMLError as error:
            why = _WHY_CLOSED.get(error.value, f"NVML does not open: {error}")
            raise NvmlUnavailable(why if why == NO_LIBRARY else f"{why} (NVML error {error.value})") from None
        self._is_open = True

    def _shut_down(self) -> None:
        if self._is_open:
            self._is_open = False
            self._module.nvmlShutdown()

    def gpus(self) -> tuple[list[GpuSample], list[str]]:
        """Each GPU that answers, in NVML's order (not CUDA's), then its MIG instances; a line on each other GPU."""
        found: list[GpuSample] = []
        lost: list[str] = []
        for index in range(self.api.nvmlDeviceGetCount()):
            try:
                gpu = self.api.nvmlDeviceGetHandleByIndex(index)
                found.append(self.identify(gpu))
                found += map(self.identify, self._mig_instances(gpu))
            except self.api.NVMLError as error:
                lost.append(f"GPU {index} does not answer: {why_lost(error.value, str(error))}")
        return found, lost

    def identify(self, handle: Any) -> GpuSample:
        """The UUID and the name alone of a GPU (``GPU-...``) or a MIG instance of one (``MIG-...``). Raises pynvml's
        NVMLError when it does not answer."""
        uuid = str(self.api.nvmlDeviceGetUUID(handle))
        try:
            return GpuSample(uuid=uuid, name=str(self.api.nvmlDeviceGetName(handle)))
        except self.api.NVMLError:
            return GpuSample(uuid=uuid)

    def find(self, uuid: str | None) -> Any:
        """The GPU or MIG instance with this UUID, whatever its prefix; None: CUDA's first. Raises `NvmlUnavailable`."""
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
        """The first GPU that ``CUDA_VISIBLE_DEVICES`` names, by an index or the beginning of a UUID; the list ends at
        its first invalid entry (CUDA C++ programming guide, "CUDA environment variables"). CUDA's order is not NVML's,
        so an index is a guess, good until the device in use gives its UUID."""
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        first = "0" if listed is None else listed.split(",")[0].strip()
        if first.startswith(("GPU-", "MIG-")):
            # CUDA accepts a UUID cut short, NVML does not.
            known = (gpu.uuid for gpu in self.gpus()[0] if gpu.uuid)
            return self._by_uuid(next((uuid for uuid in known if uuid.startswith(first)), first))
        if not first.isdecimal() or int(first) >= self.api.nvmlDeviceGetCount():
            setting = _NO_GPU if listed is None else f"CUDA_VISIBLE_DEVICES={listed!r} shows no GPU"
            raise NvmlUnavailable(setting)
        gpu = self.api.nvmlDeviceGetHandleByIndex(int(first))
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
    """nvidia-ml-py's ``pynvml``. Raises `NvmlUnavailable` without it. Up to release 11 the PyPI package ``pynvml`` hid
    it behind old bindings; from 12 on that only prints a warning at import, which would land on the screen."""
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


def why_lost(code: int, text: str) -> str:
    """One line on a GPU that does not answer; `text` is NVML's own wording for codes without a line here."""
    return f"{LOST.get(code, text)} (NVML error {code})"
