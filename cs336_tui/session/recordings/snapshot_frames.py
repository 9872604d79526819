"""Stacks of a memory snapshot: the place that each tells, and the phase that ran. Innermost frames come first.

``stacks="all"`` has frames of C++ too, and each stack tells its phase. ``stacks="python"`` has none of autograd's own
threads: an empty stack among others is one of backward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cs336_tui.events.prediction import WORKSPACE_OP, Site


class Phase:
    """Phases that stacks tell."""

    FORWARD, LOSS, BACKWARD, OPTIMIZER, ZERO_GRAD = "forward", "loss", "backward", "optimizer", "zero_grad"


_OP = re.compile(r"\bat::_ops::(\w+)::(?:call|redispatch)\(")
_NODE = re.compile(r"\b(\w+Backward\d*|AccumulateGrad)(?:::apply|_apply_functional)\(")
_OVERLOAD = re.compile(r"_(?:(?:dim_)?[A-Z]\w*|out|dim|int|self|other|start|start_step|dtype)$")
_MAKES_MEMORY = re.compile(r"_?(?:new_)?(?:empty|resize|to_copy|unsafe_view|reshape_alias)(?:_|$)")
"""Operators that others ask for memory, and so tell little."""
_WORKSPACE = ("getNewWorkspace", "getCUDABlasLtWorkspace", "CUDABlasWorkspace")
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|torchinductor_\w+|lib[/\\]python3[^/\\]*|torch)[/\\]")
_SEPARATOR = re.compile(r"[/\\]")
_OWN_WITHOUT_FILE = ("<ipython-input", "<stdin", "<string")
_UNTELLING = frozenset({
    "forward", "backward", "apply", "step", "wrapper", "inner", "_call_impl", "_wrapped_call_impl", "__call__", "_fn",
    "<lambda>", "<module>", "decorate_context", "wrapped", "fn", "call", "run",
})  # fmt: skip
"""Functions of libraries whose name tells no operation."""
_LOSS = re.compile(r"(?:.*_)?loss(?:_fn|_function|_func)?|.*cross_entropy.*|nll_loss.*")
_MODULE_CALL, _LOSS_MODULE = "call of a module", "module of a loss"
_MOST_TEXT = 200


class Stack(NamedTuple):
    """The knowledge of one stack; `empty` has no frames."""

    op: str = ""
    frame: str = ""
    """As ``model.py:54 forward``."""
    phase: str = ""
    state: bool = False
    """True if an optimizer made its state."""
    empty: bool = True

    @property
    def site(self) -> Site:
        return Site(self.op, self.frame, phase=self.phase, backward=self.phase == Phase.BACKWARD)


class _Frame(NamedTuple):
    """One frame: its place if of Python, `own` if of the user's code; the `op`, `node` and `phase` that it tells."""

    python: str = ""
    own: bool = False
    function: str = ""
    op: str = ""
    node: str = ""
    phase: str = ""


class Stacks:
    """Reads stacks, of equal ones one. Frames are told by identity, so they have to live as long as this."""

    def __init__(self) -> None:
        self._frames: dict[int, _Frame] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self.names_cpp = False
        """True if any stack has frames of C++."""

    def of(self, frames: object) -> Stack:
        if not isinstance(frames, list) or not frames:
            return _EMPTY
        key = tuple(map(id, frames))
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = _read([self._frame(each) for each in frames])
        return found

    def _frame(self, frame: object) -> _Frame:
        found = self._frames.get(id(frame))
        if found is None:
            found = self._frames[id(frame)] = _read_frame(frame) if isinstance(frame, dict) else _Frame()
            self.names_cpp = self.names_cpp or not found.python
        return found


_EMPTY = Stack()


def _read(frames: Sequence[_Frame]) -> Stack:
    python = [frame for frame in frames if frame.python]
    own = next((frame for frame in python if frame.own), None)
    place = own or next(iter(python), None)
    state = any(frame.function == "_init_group" and frame.phase == Phase.OPTIMIZER for frame in python)
    return Stack(_op(frames, python), place.python if place else "", _phase(frames), state, empty=False)


def _op(frames: Sequence[_Frame], python: Sequence[_Frame]) -> str:
    """The innermost operator that does more than to make memory; without C++ frames the library's function."""
    ops = [frame.op for frame in frames if frame.op]
    if telling := next((op for op in ops if op == WORKSPACE_OP or not _MAKES_MEMORY.match(op)), ""):
        return telling
    if node := next((frame.node for frame in frames if frame.node), ""):
        return node
    if ops:
        return ops[-1]
    inner = next(iter(python), None)
    return inner.function if inner and not inner.own and inner.function not in _UNTELLING else ""


def _phase(frames: Sequence[_Frame]) -> str:
    """Backward if anything of it is on the stack, else what the innermost telling frame says. A loss within a module
    is forward's."""
    told = [frame.phase for frame in frames if frame.phase]
    if Phase.BACKWARD in told:
        return Phase.BACKWARD
    if not told:
        return ""
    place = next((place for place, phase in enumerate(told) if phase not in (Phase.LOSS, _LOSS_MODULE)), None)
    if place is None:
        return Phase.LOSS
    if told[place] != _MODULE_CALL:
        return told[place]
    # The call of a loss that is a module, by itself, is two frames.
    return (
        Phase.LOSS
        if _LOSS_MODULE in told[max(place - 1, 0) : place] and told.count(_MODULE_CALL) <= 2
        else Phase.FORWARD
    )


def _read_frame(frame: Mapping[Any, Any]) -> _Frame:
    name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
    name = plain(name) if isinstance(name, str) else ""
    file = plain(file) if isinstance(file, str) else ""
    if file.endswith(".py") or file.startswith("<"):
        library = _LIBRARY.search(file) is not None or (file.startswith("<") and not file.startswith(_OWN_WITHOUT_FILE))
        number = f":{line}" if isinstance(line, int) else ""
        place = f"{_SEPARATOR.split(file)[-1]}{number} {name}"
        return _Frame(place[:_MOST_TEXT], not library, name[:_MOST_TEXT], phase=_python_phase(name, file))
    if any(each in name for each in _WORKSPACE):
        return _Frame(op=WORKSPACE_OP)
    if found := _OP.search(name):
        return _Frame(op=_OVERLOAD.sub("", found[1])[:_MOST_TEXT])
    node = _NODE.search(name)
    return _Frame(
        node=node[1][:_MOST_TEXT] if node else "", phase=Phase.BACKWARD if "autograd::Engine::" in name else ""
    )


def _python_phase(name: str, file: str) -> str:
    """The phase in which a Python function runs, or what tells it of a module; empty if nothing does."""
    path = file.replace("\\", "/")
    if name in ("backward", "_engine_run_backward", "unpack_hook"):
        return Phase.BACKWARD
    if name == "zero_grad":
        return Phase.ZERO_GRAD
    if "/torch/optim/" in path:
        return "" if path.endswith(("lr_scheduler.py", "swa_utils.py")) else Phase.OPTIMIZER
    if name == "step" and "optim" in path.rpartition("/")[2]:
        return Phase.OPTIMIZER
    if name in ("_call_impl", "_wrapped_call_impl") and path.endswith("torch/nn/modules/module.py"):
        return _MODULE_CALL
    if path.endswith("torch/nn/modules/loss.py"):
        return _LOSS_MODULE
    return Phase.LOSS if _LOSS.fullmatch(name) else ""


def plain(text: str) -> str:
    """The text without what cannot be written to a log."""
    return text.encode("utf-8", "replace").decode()
