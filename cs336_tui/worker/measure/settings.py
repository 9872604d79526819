"""Settings of the whole process that a cell may change: torch's, and Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from cs336_tui.worker.workload.building import collect_garbage

Settings = dict[str, Any]  # Values by the names of settings, without those that torch cannot read


def read_settings() -> Settings:
    """The current settings. Takes tens of microseconds; initialises no device."""
    found: Settings = {}
    for name, setting in _all().items():
        with suppress(Exception):  # mixed names of one setting, or a device that has failed for good
            found[name] = setting.read()
    return found


def restore(settings: Settings) -> tuple[str, ...]:
    """Restore the settings that differ; returns the names of those that could not be set. An equal setting is not
    touched: setting threads, even to the same number, changes how MKL shares out its work."""
    lost: list[str] = []
    for name, setting in _all().items():
        if name not in settings:
            continue
        now: object = _UNREADABLE
        with suppress(Exception):
            now = setting.read()
        if now != settings[name]:
            try:
                setting.write(settings[name])
            except Exception:
                lost.append(name)
    return tuple(lost)


_UNREADABLE = object()


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], object]


@cache
def _all() -> dict[str, _Setting]:
    """All settings in the order in which they are restored: one that sets others comes before them."""
    cuda = torch.backends.cuda
    found = {
        "threads": _Setting(torch.get_num_threads, torch.set_num_threads),
        "matmul": _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
        "default device": _Setting(_default_device, torch.set_default_device),
        "grad": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
        "deterministic": _Setting(
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        "flash": _Setting(cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        "memory-efficient": _Setting(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        "math": _Setting(cuda.math_sdp_enabled, cuda.enable_math_sdp),
        "cudnn": _Setting(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        # Asking for the current device would initialise CUDA.
        "cuda device": _Setting(
            lambda: torch.cuda.current_device() if torch.cuda.is_initialized() else None, _set_cuda_device
        ),
    }
    # From torch 2.9 on TF32 has new setting names, and mixing old and new ones in one process is an error.
    new = hasattr(cuda.matmul, "fp32_precision")
    # An unset one inherits: from all, from a backend ("cudnn." is all of CUDA's), from an operation.
    within = ["", "cudnn.", "mkldnn.", "cuda.matmul.", "cudnn.conv.", "cudnn.rnn."]
    within += ["mkldnn.matmul.", "mkldnn.conv.", "mkldnn.rnn."]
    tf32 = [f"{each}fp32_precision" for each in within] if new else ["cuda.matmul.allow_tf32", "cudnn.allow_tf32"]
    others = [f"cuda.matmul.allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16")]
    others += ["cuda.matmul.allow_fp16_accumulation"]
    others += [f"cudnn.{name}" for name in ("enabled", "benchmark", "deterministic")]
    for path in [*tf32, *others]:
        with suppress(Exception):  # not in this torch
            attrgetter(path)(torch.backends)
            found[path] = _Setting(partial(attrgetter(path), torch.backends), partial(_set_backend, path))
    return found


def _set_backend(path: str, value: object) -> None:
    owner, _, name = path.rpartition(".")
    setattr(attrgetter(owner)(torch.backends) if owner else torch.backends, name, value)


def _default_device() -> torch.device | None:
    """The device of torch's default-device context; None without one. `torch.get_default_device` says "cpu" for both
    none and a context of a CPU, but a context slows every call."""
    contexts = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return contexts[-1].device if contexts else None


def _set_cuda_device(device: int | None) -> None:
    with suppress(RuntimeError):  # a device that has failed for good
        if device is not None:
            torch.cuda.set_device(device)


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore torch's settings of the whole process at the end, threads and CUDA device included."""
    before = read_settings()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect, then switch Python's collector off, as one collection can outlast a step."""
    enabled = gc.isenabled()
    collect_garbage()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def freeze_existing_objects() -> None:
    """Collect, then exempt all existing objects from later collections. To be called before the first step."""
    collect_garbage()
    gc.freeze()


def collect_step_garbage() -> None:
    """Free reference cycles and the activations that they hold, as a training loop's collector would, in microseconds.
    Only between two steps. A full collection would empty Python's free lists, for the next step to fill."""
    gc.collect(1)


def generator_state(device: torch.device) -> torch.Tensor:
    """The state of the device's default random generator, bytes."""
    match device.type:
        case "cuda":
            return torch.cuda.get_rng_state(device)
        case "mps":
            return torch.mps.get_rng_state()
    return torch.get_rng_state()
