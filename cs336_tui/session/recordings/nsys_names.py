"""Names of NVTX ranges: those of torch's ``emit_nvtx``, of libraries, and of users."""

from __future__ import annotations

import re

OF_LIBRARIES = frozenset((
    "nccl", "cublas", "cublaslt", "cudnn", "cusolver", "cusparse", "cufft", "cccl", "cub", "thrust", "nvshmem", "dali",
))  # fmt: skip
"""Domains, in small letters, in which libraries name their own calls."""
_ADDED = (", op_id = ", ", seq = ", ", sizes = ", ", input_op_ids = ")
"""The addition of torch's ``emit_nvtx`` to a name."""
_SEQUENCE = re.compile(r", seq = (\d{1,18})\b")
_NODE = re.compile(r"autograd::engine::evaluate_function: .+|\w+Backward\d*")
_KNOWN_OPERATOR = re.compile(r"(?:aten|prims?|c10d?|torch|quantized|nccl)::\S+")


class RangeNames:
    """Tells operators and autograd's nodes of torch by the names of their ranges."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[bool, bool]] = {}

    def read(self, text: str) -> tuple[str, bool, int, bool]:
        """The name without what torch adds, True for one of torch, autograd's sequence or -1, True for a node."""
        at = text.find(", ")
        while at >= 0 and not text.startswith(_ADDED, at):
            at = text.find(", ", at + 1)
        bare = text if at < 0 else text[:at]
        kinds = self._kinds.get(bare)
        if kinds is None:
            node = _NODE.fullmatch(bare) is not None
            kinds = self._kinds[bare] = node or _KNOWN_OPERATOR.fullmatch(bare) is not None, node
        of_torch, node = kinds
        sequence = _SEQUENCE.search(text, at) if of_torch and at >= 0 else None
        return bare, of_torch, int(sequence[1]) if sequence else -1, node
