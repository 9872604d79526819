"""Model sizes, keyed by handout edition: the same name is another model in another year."""

from __future__ import annotations

from cs336_tui.config.spec import EDITIONS, ModelDims, SpecError

# d_model, d_ff, layers, heads
_TINY = (256, 1024, 4, 4)
_SHARED = {
    "tiny": _TINY,
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
}
_UNTIL_2025 = _SHARED | {"xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32)}
_SIZES: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "2024": _UNTIL_2025,
    "2025": _UNTIL_2025,
    "2026": _SHARED | {"xl": (2560, 10240, 32, 32), "10B": (4608, 12288, 50, 36)},
}


def size_names(edition: str) -> tuple[str, ...]:
    """Names of the edition's size table, smallest first; `tiny` is ours, for CPUs."""
    if edition not in _SIZES:
        raise SpecError("edition", edition, f"expected one of {', '.join(EDITIONS)}")
    return tuple(_SIZES[edition])


def dims_of(size: str, edition: str, vocab_size: int = 10_000) -> ModelDims:
    """Dimensions of a named size. Raises `SpecError` for a name that the edition does not have."""
    names = size_names(edition)
    if size not in names:
        raise SpecError("size", size, f"edition {edition} has {', '.join(names)}")
    d_model, d_ff, num_layers, num_heads = _SIZES[edition][size]
    return ModelDims(d_model=d_model, d_ff=d_ff, num_layers=num_layers, num_heads=num_heads, vocab_size=vocab_size)
