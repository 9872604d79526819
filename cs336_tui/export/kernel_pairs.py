"""Two profiles kernel by kernel: what each takes in both, the largest difference first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cs336_tui.analysis.kernel_names import short_name
from cs336_tui.analysis.merge import grouped
from cs336_tui.events.kernel_report import KernelGroup, KernelReport
from cs336_tui.export.kernel_use import milliseconds
from cs336_tui.export.tables import Column, Table, Value, known
from cs336_tui.stats.quantities import NONE


class KernelPair(NamedTuple):
    """A kernel's launches and their time, ns, in two profiles; 0 where it is in one alone."""

    name: str
    kind: str
    a_ns: int
    a_instances: int
    b_ns: int
    b_instances: int

    @property
    def short(self) -> str:
        return short_name(self.name)

    @property
    def difference_ns(self) -> int:
        """B less A."""
        return self.b_ns - self.a_ns

    @property
    def ratio(self) -> float | None:
        """B over A; None where one has none."""
        return self.b_ns / self.a_ns if self.a_ns and self.b_ns else None


def kernel_pairs(a: KernelReport, b: KernelReport) -> tuple[KernelPair, ...]:
    """Every kernel of either profile, by its full name; the largest difference first."""
    of_a, of_b = (grouped(report.groups, lambda group: group.name) for report in (a, b))
    pairs = (_pair(name, of_a.get(name, []), of_b.get(name, [])) for name in of_a | of_b)
    return tuple(sorted(pairs, key=lambda pair: (-abs(pair.difference_ns), pair.name)))


def _pair(name: str, a: Sequence[KernelGroup], b: Sequence[KernelGroup]) -> KernelPair:
    (a_ns, a_instances), (b_ns, b_instances) = (
        (sum(group.total_ns for group in groups), sum(group.instances for group in groups)) for groups in (a, b)
    )
    return KernelPair(name, (*a, *b)[0].kind, a_ns, a_instances, b_ns, b_instances)


def pairs_table(a: KernelReport, b: KernelReport) -> Table:
    """A row for each kernel of either profile, and for all of them together."""
    pairs = kernel_pairs(a, b)
    both = KernelPair("all", "", a.total_ns, a.launches, b.total_ns, b.launches)
    columns: tuple[Column[KernelPair], ...] = (
        Column("kind", rank=3, left=True),
        Column("short", "kernel", left=True, text=lambda pair: pair.name if pair is both else pair.short),
        Column("a_ns", "A (ms)", show=milliseconds),
        Column("a_instances", "A launches", rank=2),
        Column("b_ns", "B (ms)", show=milliseconds),
        Column("b_instances", "B launches", rank=2),
        Column("difference_ns", "B - A (ms)", show=lambda ns: f"{ns / 1e6:+.3f}"),
        Column("ratio", "B / A", show=known("{:.3f}", NONE)),
    )
    return Table.of(
        (*pairs, both),
        columns,
        record=_record,
        caption=f"Kernels of A ({a.spec.heading}) and B ({b.spec.heading})",
        footnotes=(
            f"A: {a.device_name}, {a.spec.heading}; B: {b.device_name}, {b.spec.heading}",
            "matched by full name: a product in another precision or tile is another kernel; whole profile",
        ),
        label="kernels-a-b",
    )


def _record(pair: KernelPair) -> dict[str, Value]:
    return {"short": pair.short, **pair._asdict(), "difference_ns": pair.difference_ns, "ratio": pair.ratio}
