"""One unit for all sizes that are read together."""

from __future__ import annotations

from typing import NamedTuple

from cs336_tui.stats.quantities import UNKNOWN, gigabytes


class ByteUnit(NamedTuple):
    """What sizes are given in, such as GB (10⁹ bytes)."""

    name: str
    bytes: float

    @classmethod
    def for_largest(cls, size_bytes: float) -> ByteUnit:
        """GB, or MB where even the largest size is less than one GB."""
        return cls("GB", 1e9) if size_bytes >= 1e9 else cls("MB", 1e6)

    def figure(self, size_bytes: float) -> str:
        """The size in 3 significant digits but at most 3 decimals, without the unit."""
        return gigabytes(size_bytes * (1e9 / self.bytes))

    def text(self, size_bytes: float | None) -> str:
        """The size with its unit, ``n/a`` for None."""
        return UNKNOWN if size_bytes is None else f"{self.figure(size_bytes)} {self.name}"
