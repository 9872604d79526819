"""The configurations that autotuners chose in this process, read after the measured steps from what they keep: Triton's
of a user's own kernels, inductor's of generated kernels and of products. Imports neither."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from cs336_tui.config.processes import USERS_CACHE_FOLDER
from cs336_tui.events.events import Autotuned

_OTHERS = ("torch", "triton", "cs336_tui")
"""Packages whose modules are not searched for kernels of a user's own."""
_MOST_KEPT = 20
"""Timings of a choice that are kept, the fastest first."""


def autotuned() -> tuple[Autotuned, ...]:
    """Every choice among several configurations, each once; what cannot be read is left out."""
    found: list[Autotuned] = []
    for read in (_of_triton, _of_generated, _of_products):
        with suppress(Exception):  # of a version that keeps them otherwise
            found += read()
    return tuple(found)


def kernels(is_searched: Callable[[str], bool] = bool) -> Iterator[Any]:
    """Triton's kernels among the names of loaded modules, of those whose file is searched, with their autotuners and
    heuristics. None is looked for where Triton is not loaded."""
    if "triton.runtime.jit" not in sys.modules:
        return
    others = [each for name, each in sys.modules.copy().items() if name.partition(".")[0] not in _OTHERS]
    named = [vars(each).copy() for each in others if isinstance(each, ModuleType)]
    modules = [names for names in named if (file := names.get("__file__")) and is_searched(file)]
    seen: set[int] = set()
    for each in (value for names in modules for value in names.values()):
        while str(type(each).__module__).startswith("triton.runtime.") and id(each) not in seen:
            seen.add(id(each))
            yield each
            each = getattr(each, "fn", None)


def _of_triton() -> Iterator[Autotuned]:
    for tuner in kernels():
        chosen: dict[Any, Any] = tuner.cache if type(tuner).__name__ == "Autotuner" else {}
        for number, (key, config) in enumerate(chosen.items(), 1):
            # Only the timings of what was tuned last are kept.
            last = getattr(tuner, "configs_timings", None) if number == len(chosen) else None
            times_s = {str(tried): _first(time_ms) / 1e3 for tried, time_ms in (last or {}).items()}
            name = getattr(getattr(tuner, "base_fn", tuner.fn), "__name__", "kernel")
            about = ", ".join(map(str, key))
            yield Autotuned(by="triton", kernel=name, key=about, chosen=str(config), times_s=_fastest(times_s))


def _of_generated() -> Iterator[Autotuned]:
    """Kernels that inductor generated and tried in several configurations."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    for module in getattr(cache, "modules", ()):
        for name, kernel in vars(module).items():
            launchers: list[Any] = getattr(kernel, "launchers", [])
            if getattr(kernel, "autotune_time_taken_ns", 0) and len(launchers) == 1:
                yield Autotuned(by="inductor", kernel=name, chosen=str(launchers[0].config))


def _of_products() -> Iterator[Autotuned]:
    """Products for which inductor tried several kernels: those in the file of its cache. None where the user keeps the
    cache, whose file has the choices of other cells too."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "CacheBase", None)
    path = cache and cache.get_local_cache_path()
    if path is None or USERS_CACHE_FOLDER is not None or not path.is_file():
        return
    for operator, by_inputs in json.loads(path.read_text())["cache"].items():
        for inputs, by_precision in by_inputs.items():
            for timings in by_precision.values():
                times_s = {name: time_ms / 1e3 for name, time_ms in timings.items()}
                if len(times_s) > 1:
                    best = min(times_s, key=times_s.__getitem__)
                    kept = _fastest(times_s)
                    yield Autotuned(by="inductor", kernel=operator, key=inputs, chosen=best, times_s=kept)


def _first(time_ms: Any) -> float:
    return float(time_ms[0] if isinstance(time_ms, list | tuple) else time_ms)


def _fastest(times_s: dict[str, float]) -> dict[str, float]:
    finite = {name: time_s for name, time_s in times_s.items() if time_s < float("inf")}
    return dict(sorted(finite.items(), key=lambda each: each[1])[:_MOST_KEPT])
