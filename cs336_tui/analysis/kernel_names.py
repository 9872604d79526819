"""Kernel names as people read them: template plumbing, launch details and namespaces left out."""

from __future__ import annotations

import re

_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::(?=[A-Za-z_(<])")
_PLUMBING = ("array", "ReduceOp", "Functor", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "TensorListMetadata",
             "func_wrapper_t", "OpaqueType", "OpType", "lambda", "operator")  # fmt: skip
_FUNCTOR = re.compile(r"\b(\w*(?:[Ff]unctor|Ops?(?![a-z])|Epilogue)\w*)(<[\w ,:*()]*>)?")
_INNER_KERNEL = re.compile(r"\b(\w+?)(?:_kernel(?:_cuda|_impl)*)(?:<[^()]*?>)?\(")
_INNER_FUNCTION = re.compile(r"\b(?:launch_)?([A-Za-z_]\w*?)(?:CUDAKernelImpl|_cuda_?|_impl)*(?:<[^()]*?>)?\(")
"""Of what a kernel is made, where no kernel is named: ``GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#1}``."""
_OPENING = {")": "(", "}": "{", "]": "["}
_DTYPE = re.compile(r"(?:c10::)?(float|double|Half|BFloat16)\b")
_LIBRARY_DTYPE = re.compile(r"\b(float|double|__half|__nv_bfloat16)\b")
_WRAPPERS = ("Kernel", "Kernel2", "device_kernel", "kernel")
_COUNT = re.compile(r"\d|\(|(true|false)$")
_VECTOR_PRODUCT = re.compile(r"gemm|gemv", re.IGNORECASE)
_GEMM = re.compile(r"gemm|gemv|cutlass|xmma|nvjet", re.IGNORECASE)
_MOST_TEXT = 4000
"""Characters of a name that are looked at."""
_GEMM_PLUMBING = re.compile(
    r"_?(?:execute_\w+|stages?_?\d+(?:x\d+)?|warpsize\d+x\d+x\d+|warpgroupsize\d+x\d+x\d+|align[ac]?\d+|warpspecialized\w*"
    r"|ldg\d+|f2f|kernel__5x_cublas)(?=_|$)"
)


def short_name(name: str) -> str:
    """The short name of a kernel, never empty. ``void at::native::vectorized_elementwise_kernel<4,
    at::native::CUDAFunctor_add<float>, ...>`` is ``vectorized_elementwise CUDAFunctor_add<float>``, ``aten::mm`` is
    ``mm``; a matrix product keeps dtypes and tile."""
    name = name[:_MOST_TEXT]
    if name.startswith("autograd::engine::evaluate_function: "):
        return f"evaluate {_last(name.partition(': ')[2])}"
    if name.startswith(("Memcpy", "Memset")):
        return name
    plain = name.removeprefix("void ").strip()
    base, arguments = _split(plain)
    if _GEMM.search(base) or (_last(base) in _WRAPPERS and _GEMM.search(arguments)):
        return _short_gemm(base, arguments) or plain
    short = _last(base).removesuffix("_kernel") or plain or "(unnamed)"
    if detail := _detail(arguments):
        return f"{short} {detail}"
    dtype = _DTYPE.match(arguments)
    return f"{short}<{dtype[1]}>" if dtype else short


def _split(name: str) -> tuple[str, str]:
    """A function's name and its template arguments: ``a::f<T, U>(int)`` is ``a::f`` and ``T, U``. A result's type
    before it is left out: ``std::enable_if<(2)>(1), void>::type f<T>(int)`` is ``f`` and ``T``."""
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    begin, opened, closed, end = 0, 0, len(name), len(name)
    nested: list[str] = []
    for place, char in enumerate(name):
        if char == "(" and not nested:
            end = place
            break
        if char in "<({[":
            opened = opened if nested else place
            nested.append(char)
        elif char == ">" and nested[-1:] == ["<"] and name[place - 1] != "-":
            nested.pop()
            closed = closed if nested else place
        elif char in _OPENING:
            while nested and nested.pop() != _OPENING[char]:
                pass
        elif char == " " and not nested:
            begin, opened, closed = place + 1, 0, len(name)
    return name[begin : opened or end] or name, name[opened + 1 : closed] if opened else ""


def _last(name: str) -> str:
    return name.rpartition("::")[2] or name


def _detail(arguments: str) -> str:
    """The functor or the inner kernel among template arguments, the innermost that says something."""
    without = _NAMESPACES.sub("", arguments)
    found = [match for match in _FUNCTOR.finditer(without) if match[1] not in _PLUMBING]
    if found:
        return _tidy(found[0][0])
    for pattern in (_INNER_KERNEL, _INNER_FUNCTION):
        for inner in pattern.finditer(without):
            if inner[1] not in _PLUMBING and not inner[1].startswith(("gpu_kernel", "at_cuda")):
                return inner[1]
    return ""


def _tidy(text: str) -> str:
    """``MeanOps<float, float, 4>`` as ``MeanOps<float>``: counts and what is said again say nothing."""
    head, _, rest = text.partition("<")
    parts = (part.strip() for part in rest.rstrip("> ").split(","))
    said = dict.fromkeys(part for part in parts if part and not _COUNT.match(part))
    return f"{head}<{', '.join(said)}>" if said else head


def _short_gemm(base: str, arguments: str) -> str:
    """A library's own name for a matrix product, which a wrapper of CUTLASS has as its argument, and cuBLAS's products
    with a vector as its namespace: ``gemvx<__nv_bfloat16>``."""
    wrapped = _last(base) in _WRAPPERS
    if wrapped and _VECTOR_PRODUCT.search(base):
        dtype = _LIBRARY_DTYPE.search(arguments)
        return _last(base.rpartition("::")[0]) + (f"<{dtype[1]}>" if dtype else "")
    chosen = arguments.partition("(")[0] if wrapped and arguments else _last(base)
    if wrapped and "<" in chosen:
        chosen = _last(chosen.partition("<")[0])
    short = _GEMM_PLUMBING.sub("", _last(chosen)).strip("_ ")
    return short.removesuffix("_kernel")
