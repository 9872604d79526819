"""Processes: whether one lives; environment variables that change step times, recorded with each cell; and the folder
of torch.compile's caches.

torch sets `CACHE_FOLDER` itself as soon as a part of it is imported. So this module is imported before torch, in the
app as in the fork server, and `USERS_CACHE_FOLDER` is what the user set; None where that is nothing.

Sources: "CUDA Environment Variables" of NVIDIA's CUDA Programming Guide; the environment variables of torch's notes
(CUDA, MPS, threading), and of oneDNN's and MKL's developer guides; "Command line and environment" of Python's manual;
"Validating your app's Metal API usage" of Apple's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple


def lives(pid: int, since: float | None = None) -> bool:
    """False if the process is known to have ended. `since` is its start (Unix seconds), as PIDs are reused. A zombie
    has ended: it stays for ever where the first process of a container reaps nothing. A stopped process lives."""
    import psutil

    try:
        process = psutil.Process(pid)
        is_same = since is None or abs(process.create_time() - since) < 2.0
        return is_same and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it may not be looked at
        return True


CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
USERS_CACHE_FOLDER = os.environ.get(CACHE_FOLDER)
BLOCKING = "CUDA_LAUNCH_BLOCKING"
INTERPRETED = "TRITON_INTERPRET"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Settings of torch's CUDA allocator; the first that is set counts, from torch 2.9 on. Before, the second."""
MOST_CHARACTERS = 100
"""Maximum length of a recorded value."""


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            _restore(name, value)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


class TimingVariable(NamedTuple):
    """`devices` are the kinds of device whose steps it changes, all where empty.

    `slows` says how it makes steps slower, with values for which `when` holds; None where it only changes them.
    """

    name: str
    devices: tuple[str, ...] = ()
    slows: str | None = None
    when: Callable[[str], bool] = lambda value: value not in ("", "0")


def _changing(device: str, *names: str) -> Iterator[TimingVariable]:
    return (TimingVariable(name, (device,)) for name in names)


_LOGS = "a library logs its calls"
_METAL = "Metal checks every call"
_TRACED = "Python does more work for every call or object"

KNOWN: tuple[TimingVariable, ...] = (
    TimingVariable(BLOCKING, ("cuda",), "the host waits for every kernel"),
    # torch looks whether it is there, whatever its value.
    TimingVariable(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        ("cuda",),
        "every tensor is asked of the driver and given back",
        lambda _: True,
    ),
    *(TimingVariable(name, ("cuda",), _LOGS) for name in ("CUBLAS_LOGINFO_DBG", "CUBLASLT_LOG_LEVEL")),
    *(TimingVariable(name, ("cuda",), _LOGS) for name in ("CUDNN_LOGINFO_DBG", "CUDNN_LOGLEVEL_DBG")),
    TimingVariable(INTERPRETED, (), "Triton's kernels are interpreted, so that their times mean nothing"),
    *_changing("cuda", "NVIDIA_TF32_OVERRIDE", "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"),
    *_changing("cuda", "CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT", "CUDA_CACHE_DISABLE", "CUDA_AUTO_BOOST"),
    *_changing("cuda", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *_changing("cuda", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CUDNN_V8_API_DISABLED"),
    *(TimingVariable(name, ("cpu",), _LOGS) for name in ("ONEDNN_VERBOSE", "DNNL_VERBOSE", "MKL_VERBOSE")),
    *_changing("cpu", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"),
    *_changing("cpu", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "OMP_DYNAMIC", "MKL_DYNAMIC", "KMP_AFFINITY"),
    *_changing("cpu", "KMP_BLOCKTIME", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *(TimingVariable(name, ("mps",), _METAL) for name in ("MTL_DEBUG_LAYER", "MTL_SHADER_VALIDATION")),
    TimingVariable("METAL_DEVICE_WRAPPER_TYPE", ("mps",), _METAL),
    *_changing("mps", "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_MPS_FAST_MATH", "PYTORCH_MPS_PREFER_METAL"),
    TimingVariable("PYTHONDEVMODE", (), _TRACED, bool),
    TimingVariable("PYTHONTRACEMALLOC", (), _TRACED),
    TimingVariable("PYTHONMALLOC", (), _TRACED, lambda value: "debug" in value),
    *(TimingVariable(name) for name in ("TORCH_SHOW_CPP_STACKTRACES", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DEBUG")),
)


def set_variables(device_type: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that are set and change step times on this kind of device, as ``NAME=value``."""
    return tuple(
        f"{each.name}={environment[each.name][:MOST_CHARACTERS]}"
        for each in KNOWN
        if each.name in environment and (not each.devices or device_type in each.devices)
    )


def slowing(variables: Iterable[str]) -> dict[str, str]:
    """Variables among these, given as ``NAME=value``, that slow steps down, each with the reason."""
    known = {each.name: each for each in KNOWN}
    found: dict[str, str] = {}
    for said in variables:
        name, _, value = said.partition("=")
        if (variable := known.get(name)) is not None and variable.slows and variable.when(value):
            found[said] = variable.slows
    return found


def segments_expand(environment: Mapping[str, str]) -> bool:
    """True if torch's CUDA allocator has expandable segments."""
    said = next(filter(None, map(environment.get, ALLOCATOR)), "")
    return re.search(r"expandable_segments\s*:\s*True", said) is not None


def restore_cache_folder() -> None:
    """Set `CACHE_FOLDER` to what the user set."""
    _restore(CACHE_FOLDER, USERS_CACHE_FOLDER)
