"""Kernel names as people read them: template plumbing, launch details and namespaces left out."""

from __future__ import annotations

import re

_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::(?=[A-Za-z_(<])")
_PLUMBING = ("gpu_kernel_impl", "array", "ReduceOp", "Functor", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor",
             "TensorListMetadata", "func_wrapper_t", "OpaqueType")  # fmt: skip
_FUNCTOR = re.compile(r"\b(\w*(?:[Ff]unctor|Ops?|Epilogue)\w*)(<[\w ,:*]*>)?")
_INNER_KERNEL = re.compile(r"\b(\w+?)(?:_kernel(?:_cuda|_impl)*)(?:<[^()]*?>)?\(")
_DTYPE = re.compile(r"(?:c10::)?(float|double|Half|BFloat16)\b")
_GEMM = re.compile(r"gemm|gemv|cutlass|xmma|nvjet", re.IGNORECASE)
_GEMM_PLUMBING = re.compile(
    r"_?(?:execute_\w+|stages?_?\d+(?:x\d+)?|warpsize\d+x\d+x\d+|warpgroupsize\d+x\d+x\d+|align[ac]?\d+|warpspecialized\w*"
    r"|ldg\d+|f2f|kernel__5x_cublas)(?=_|$)"
)


def short_name(name: str) -> str:
    """What tells a kernel from its neighbours, never empty.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>`` is
    ``vectorized_elementwise CUDAFunctor_add<float>``, ``aten::mm`` is ``mm``; a matrix product keeps dtypes and tile.
    """
    if name.startswith("autograd::engine::evaluate_function: "):
        return f"evaluate {_last(name.partition(': ')[2])}"
    if name.startswith(("Memcpy", "Memset")):
        return name
    plain = name.removeprefix("void ").strip()
    base, arguments = _split(plain)
    if _GEMM.search(plain):
        return _short_gemm(base, arguments) or plain
    short = _last(base).removesuffix("_kernel") or plain or "(unnamed)"
    if detail := _detail(arguments):
        return f"{short} {detail}"
    dtype = _DTYPE.match(arguments)
    return f"{short}<{dtype[1]}>" if dtype else short


def _split(name: str) -> tuple[str, str]:
    """A function's name and its template arguments: ``a::f<T, U>(int)`` is ``a::f`` and ``T, U``."""
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    opening = name.find("<")
    if opening < 0:
        return (name.partition("(")[0] or name), ""
    depth = 0
    for place in range(opening, len(name)):
        depth += (name[place] == "<") - (name[place] == ">" and name[place - 1] != "-")
        if not depth:
            return name[:opening], name[opening + 1 : place]
    return name[:opening], name[opening + 1 :]


def _last(name: str) -> str:
    return name.rpartition("::")[2] or name


def _detail(arguments: str) -> str:
    """The functor or the inner kernel among template arguments, the innermost that says something."""
    without = _NAMESPACES.sub("", arguments)
    found = [match for match in _FUNCTOR.finditer(without) if match[1] not in _PLUMBING]
    if found:
        return _tidy(found[0][0])
    if inner := _INNER_KERNEL.search(without):
        return inner[1]
    return ""


def _tidy(text: str) -> str:
    """``MeanOps<float, float, 4>`` as ``MeanOps<float>``: counts and what is said again say nothing."""
    head, _, rest = text.partition("<")
    parts = (part.strip() for part in rest.rstrip("> ").split(","))
    said = dict.fromkeys(part for part in parts if part and not part.isdigit())
    return f"{head}<{', '.join(said)}>" if said else head


def _short_gemm(base: str, arguments: str) -> str:
    """A library's own name for a matrix product, which a wrapper of CUTLASS has as its argument."""
    wrapped = _last(base) in ("Kernel", "Kernel2", "device_kernel", "kernel")
    chosen = arguments.partition("(")[0] if wrapped and arguments else _last(base)
    if wrapped and "<" in chosen:
        chosen = _last(chosen.partition("<")[0])
    short = _GEMM_PLUMBING.sub("", _last(chosen)).strip("_ ")
    return short.removesuffix("_kernel")
