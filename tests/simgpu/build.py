"""Builds the simulated CUDA libraries for a virtual environment that has a CUDA build of torch.

Usage: ``python tests/simgpu/build.py VENV OUT``. The libraries go to OUT; `environment` tells how a process finds them.
Needs g++, gcc, readelf and nm. The headers of CUDA come from PyPI, in the version that torch was built with.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
CORE = (
    "world", "board", "memory", "timeline", "truth", "graphs", "faults", "durations", "activity", "compute_loader",
    "attrs",
)  # fmt: skip
BY_HAND = {
    "libcudart": "cudart",
    "libcuda": "cuda",
    "libcublas": "cublas",
    "libcublasLt": "cublas",
    "libnccl": "nccl",
    "libcupti": "cupti",
    "libcudnn": "cudnn",
}
"""Libraries with sources of their own. Whatever else torch names in them, and in others, is a stub."""

_NVIDIA = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusparseLt|cusolver|nccl|nvshmem_host|cupti|cufile|nvrtc"
    r"|cuda|nvToolsExt)\.so"
)
_OWNERS = (
    (r"nccl", "libnccl"),
    (r"cusparseLt", "libcusparseLt"),
    (r"cuFile", "libcufile"),
    (r"nvshmem", "libnvshmem_host"),
    (r"cu[A-Z]", "libcuda"),
    (r"nv", "libnvshmem_host"),
)
"""Owners of symbols without a version, by how their names begin."""

_TEXTS = re.compile(r"(GetErrorString|GetErrorName|StatusName|StatusString|GetLastError)$")
_ERROR_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    209: "no kernel image is available for execution on the device",
    214: "uncorrectable ECC error encountered",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    710: "device-side assert triggered",
    719: "unspecified launch failure",
    801: "operation not supported",
    900: "operation not permitted when stream is capturing",
    901: "operation failed due to a previous error during capture",
    903: "capture was not ended in the same stream as it began",
    904: "capturing stream has unjoined work",
    905: "dependency created on uncaptured work in another stream",
    907: "operation not permitted on an event last recorded in a capturing stream",
    999: "unknown error",
}
"""Texts of cudaError_t, from the CUDA Runtime API reference; other codes read as their names."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))[:300]}\n{done.stderr[-4000:]}")
    return done.stdout


def environment(libraries: Path) -> dict[str, str]:
    """Variables with which a process finds the simulated libraries."""
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "TRITON_LIBCUDA_PATH": str(libraries),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # each process of a pool would import torch
    }


def build(venv: Path, out: Path) -> None:
    python = venv / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    cuda = re.search(r"cuda[^=\n]*=\s*'([\d.]+)'", (site / "torch" / "version.py").read_text())
    if not cuda:
        raise SystemExit(f"the torch of {venv} is no CUDA build")
    objects = out / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    headers = _headers(python, cuda[1], out)
    (objects / "errors.inc").write_text(_errors(next(headers.rglob("driver_types.h"))))
    includes = [f"-I{folder}" for folder in sorted(headers.rglob("include"))]
    abi = int(  # that of the strings of torch
        b"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx11" in (site / "torch" / "lib" / "libc10.so").read_bytes()
    )
    torch_includes = [f"-I{site}/torch/include", f"-I{site}/torch/include/torch/csrc/api/include"]
    names = [*CORE, *dict.fromkeys(BY_HAND.values()), "nvml", "compute"]

    def compile_one(name: str) -> None:
        extra = [*torch_includes, f"-I{SOURCES}"] if name == "compute" else [*includes, f"-I{objects}"]
        source, made = SOURCES / f"{name}.cpp", objects / f"{name}.o"
        if made.exists() and made.stat().st_mtime > max(source.stat().st_mtime, (SOURCES / "sim.h").stat().st_mtime):
            return
        flags = ["-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
        run("g++", *flags, *extra, "-c", source, "-o", made)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, names))
    core = [objects / f"{name}.o" for name in CORE]
    link = ["g++", "-shared", f"-L{out}", "-Wl,-rpath,$ORIGIN"]
    run(*link, "-Wl,-soname,libsimgpu.so", *core, "-ldl", "-lpthread", "-o", out / "libsimgpu.so")
    nvml = [objects / "nvml.o", "-lsimgpu", "-o", out / "libnvidia-ml.so.1"]
    run(*link, "-Wl,-soname,libnvidia-ml.so.1", *nvml)
    torch_libraries = [f"-L{site}/torch/lib", "-ltorch_cpu", "-lc10"]
    run(*link, objects / "compute.o", *torch_libraries, "-lsimgpu", "-o", out / "libsimgpu_compute.so")
    _link_libraries(site / "torch" / "lib", objects, out)


def _headers(python: Path, cuda: str, out: Path) -> Path:
    """The folder that holds CUDA's headers, in one folder `include` or in several."""
    major, minor = cuda.split(".")[:2]
    folder = out / f"headers-{major}.{minor}"
    names = ("runtime", "crt", "cupti") if int(major) >= 13 else ("runtime", "nvcc", "cupti")
    suffix = "" if int(major) >= 13 else f"-cu{major}"
    if not folder.exists():
        wanted = [f"nvidia-cuda-{name}{suffix}=={major}.{minor}.*" for name in names]
        run(python, "-m", "pip", "install", "-q", "--no-deps", "--target", f"{folder}.part", *wanted)
        Path(f"{folder}.part").rename(folder)
    return folder


def _errors(header: Path) -> str:
    text = header.read_text()
    start = text.index("enum __device_builtin__ cudaError\n")
    codes = re.findall(r"^\s*(cuda\w+)\s*=\s*(\d+)\s*,?", text[start : text.index("};", start)], re.MULTILINE)
    return "".join(f'{{{code}, "{name}", "{_ERROR_TEXTS.get(int(code), name)}"}},\n' for name, code in codes)


def _wanted(torch_lib: Path) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Sonames by library, and the symbols with their versions that torch's libraries want of each."""
    sonames = {"libcuda": "libcuda.so.1"}
    wanted: dict[str, dict[str, str]] = {}
    for file in sorted(torch_lib.glob("*.so*")):
        for name in re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", file)):
            if _NVIDIA.match(name):
                sonames[name.split(".so")[0]] = name
        for line in run("readelf", "-W", "--dyn-syms", file).splitlines():
            parts = line.split()
            if len(parts) < 8 or parts[6] != "UND":
                continue
            symbol, _, version = parts[7].partition("@")
            library = _owner(symbol, version := version.lstrip("@"))
            if library:
                wanted.setdefault(library, {})[symbol] = version
    return sonames, wanted


def _owner(symbol: str, version: str) -> str | None:
    if _NVIDIA.match(version):
        return version.split(".so")[0]
    if version == "NVSHMEM":
        return "libnvshmem_host"
    return None if version else next((library for head, library in _OWNERS if re.match(head, symbol)), None)


def _stub(symbol: str) -> str:
    """A line of C that says success. What creates a handle writes one; a text is a text."""
    if _TEXTS.search(symbol):
        return f"TEXT({symbol})"
    if symbol == "cufftCreate":
        return f"CREATE_INT({symbol})"
    return f"CREATE({symbol})" if "Create" in symbol else f"STUB({symbol})"


def _link_libraries(torch_lib: Path, objects: Path, out: Path) -> None:
    sonames, wanted = _wanted(torch_lib)
    for library, soname in sorted(sonames.items()):
        symbols = wanted.get(library, {})
        own = objects / f"{BY_HAND[library]}.o" if library in BY_HAND else None
        defined = (
            [line.split()[-1] for line in run("nm", "-g", "--defined-only", own).splitlines() if " T " in line]
            if own
            else []
        )
        by_hand = {name for name in defined if not name.startswith("_Z")}
        stub = objects / f"{library}.stub"
        lines = ['#include "stub.h"', *map(_stub, sorted(set(symbols) - by_hand))]
        stub.with_suffix(".c").write_text("\n".join(lines) + "\n")
        run("gcc", "-O1", "-fPIC", "-w", f"-I{SOURCES}", "-c", stub.with_suffix(".c"), "-o", stub.with_suffix(".o"))
        versions = {version for version in symbols.values() if version}
        default = soname if soname in versions or not versions else min(versions)
        nodes: dict[str, list[str]] = {}
        for symbol in sorted(set(symbols) | by_hand):
            nodes.setdefault(symbols.get(symbol) or (default if versions else ""), []).append(symbol)
        script = "".join(
            f"{version} {{ global: {' '.join(f'{name};' for name in names)} {'local: *;' if not i else ''} }};\n"
            for i, (version, names) in enumerate(sorted(nodes.items()))
        )
        map_file = objects / f"{library}.map"
        map_file.write_text(script or "{ local: *; };\n")
        parts = [stub.with_suffix(".o"), *([own] if own else []), f"-L{out}", "-lsimgpu", "-ldl", "-lpthread"]
        flags = [f"-Wl,-soname,{soname}", f"-Wl,--version-script,{map_file}", "-Wl,-rpath,$ORIGIN"]
        run("g++", "-shared", *flags, *parts, "-o", out / soname)
        if library == "libcuda":  # older releases of Triton link against it by this name
            link = out / "libcuda.so"
            link.unlink(missing_ok=True)
            link.symlink_to(soname)
        print(f"{soname}: {len(set(symbols) & by_hand)} symbols by hand, {len(set(symbols) - by_hand)} stubs")


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
