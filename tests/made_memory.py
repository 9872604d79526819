"""Memory reports, made up but plausible, for tests of their readers."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import CATEGORIES, Category, MemoryBlock, Prediction, Site
from cs336_tui.events.reports import (
    BlockMemory,
    MemoryReport,
    OomReport,
    PhaseSpan,
    SavedBlock,
    SavedTensor,
    TensorForm,
)
from tests.samples import a_spec

MB = 10**6


class _Allocation(NamedTuple):
    bytes: int
    category: Category
    site: Site
    form: TensorForm | None
    born: int


class MemoryMaker:
    """A report made event by event: blocks allocated before the first `phase` live when the step begins."""

    def __init__(self) -> None:
        self.events = 1
        self._made: list[_Allocation] = []
        self._died: dict[int, int] = {}
        self._phases: list[tuple[str, int]] = []

    def phase(self, name: str) -> None:
        self._phases.append((name, self.events))

    def allocate(
        self,
        bytes_: int,
        category: Category,
        op: str = "",
        frame: str = "",
        range_: str = "",
        *,
        backward: bool = False,
        form: TensorForm | None = None,
    ) -> int:
        """Allocate a block; the number that it is freed by."""
        phase = self._phases[-1][0] if self._phases else ""
        born = self.events if self._phases else 0
        self._made.append(_Allocation(bytes_, category, Site(op, frame, range_, phase, backward), form, born))
        self.events += bool(self._phases)
        return len(self._made) - 1

    def free(self, block: int) -> None:
        self._died[block] = self.events
        self.events += 1

    def report(self, **more: Any) -> MemoryReport:
        totals = self._totals()
        sites = list(dict.fromkeys(made.site for made in self._made))
        forms = list(dict.fromkeys(made.form for made in self._made if made.form))
        ends = [first for _, first in self._phases[1:]] + [self.events]
        spans = [
            PhaseSpan(name, first, end, max(totals[first - 1 : end]))
            for (name, first), end in zip(self._phases, ends, strict=True)
        ]
        place = {site: index for index, site in enumerate(sites)}
        of_run = {"spec": a_spec(), "recorder": "CUDA allocator history", "torch": "2.13.0", "events": self.events}
        of_run |= {"device_name": "NVIDIA H100 80GB HBM3", "sites": tuple(sites), "forms": tuple(forms)}
        of_blocks: dict[str, Any] = {"bytes": tuple(made.bytes for made in self._made)}
        of_blocks |= {"born": tuple(made.born for made in self._made)}
        of_blocks |= {"died": tuple(self._died.get(number, -1) for number in range(len(self._made)))}
        of_blocks |= {"categories": tuple(CATEGORIES.index(made.category) for made in self._made)}
        of_blocks |= {"site_of": tuple(place[made.site] for made in self._made)}
        of_blocks |= {"form_of": tuple(forms.index(made.form) if made.form else -1 for made in self._made)}
        of_phases = {"phases": tuple(spans), "peak_bytes": max(totals), "peak_event": totals.index(max(totals))}
        of_phases |= {"allocator_peak_bytes": max(totals)}
        of_phases |= {"forward_end_bytes": next((totals[s.end - 1] for s in spans if s.phase == "forward"), 0)}
        return MemoryReport(**of_run | of_blocks | of_phases | more)

    def _totals(self) -> list[int]:
        change = [0] * self.events
        for number, made in enumerate(self._made):
            change[made.born] += made.bytes
            if number in self._died:
                change[self._died[number]] -= made.bytes
        totals, live = [], 0
        for value in change:
            live += value
            totals.append(live)
        return totals


SCORES = TensorForm((4, 12, 128, 128), "float32")
HIDDEN = TensorForm((4, 128, 3072), "float32")


def a_memory_report(*, layers: int = 3, **more: Any) -> MemoryReport:
    """A whole training step of `layers` layers; at the begin of the step the last one's gradients are still there."""
    made = MemoryMaker()
    parameters = [made.allocate(20 * MB, "parameters") for _ in range(layers)]
    for _ in parameters:
        made.allocate(40 * MB, "optimizer_state")
    made.allocate(1 * MB, "buffers")
    old = [made.allocate(20 * MB, "gradients") for _ in parameters]
    made.phase("zero_grad")
    for block in old:
        made.free(block)
    made.phase("forward")
    kept: list[int] = []
    for _ in range(layers):
        scores = made.allocate(3 * MB, "temporary", "bmm", "transformer.py:131 score", "attention scores", form=SCORES)
        kept.append(
            made.allocate(3 * MB, "activations", "_softmax", "transformer.py:135 weigh", "softmax", form=SCORES)
        )
        made.free(scores)
        kept += [
            made.allocate(6 * MB, "activations", op, "transformer.py:158 forward", "feed-forward", form=HIDDEN)
            for op in ("mm", "silu", "mul")
        ]
    kept.append(made.allocate(20 * MB, "activations", "mm", "transformer.py:51 forward", "head"))
    made.phase("loss")
    kept.append(made.allocate(20 * MB, "activations", "_log_softmax", "passes.py:119 _compute_loss", "loss"))
    made.phase("backward")
    for number, block in enumerate(reversed(kept)):
        gradient = made.allocate(
            15 * MB, "temporary", "mm", "transformer.py:158 forward", "feed-forward", backward=True, form=HIDDEN
        )
        made.free(block)
        if number % 5 == 1:
            made.allocate(
                20 * MB, "gradients", "mm", "transformer.py:158 forward", "feed-forward", backward=True, form=None
            )
        made.free(gradient)
    made.phase("optimizer")
    made.free(made.allocate(60 * MB, "temporary", "_foreach_sqrt", "passes.py:129 _optimizer", "optimizer"))
    defaults: dict[str, Any] = {
        "spec": a_spec(pass_="train-step"),
        "saved": some_saved_blocks(layers),
        "blocks": some_blocks_memory(layers),
        "prediction": a_prediction(a_spec(pass_="train-step"), peak_bytes=303 * MB),
        "snapshot": "/sessions/sample/memory-1.pickle",
    }
    return made.report(**(defaults | more))


def some_saved_blocks(layers: int) -> tuple[SavedBlock, ...]:
    """Every layer saves the same seven tensors."""
    tensors = (
        SavedTensor("SoftmaxBackward0", "softmax", "float32", (4, 12, 128, 128), 1, 3_145_728),
        SavedTensor("MulBackward0", "feed-forward", "float32", (4, 128, 3072), 1, 6_291_456),
        SavedTensor("MmBackward0", "feed-forward", "float32", (512, 3072), 1, 6_291_456),
        SavedTensor("SiluBackward0", "feed-forward", "float32", (4, 128, 3072), 1, 6_291_456),
        SavedTensor("MmBackward0", "QKV projections", "float32", (512, 768), 1, 1_572_864),
        SavedTensor("BmmBackward0", "attention scores", "float32", (48, 128, 64), 2, 3_145_728),
        SavedTensor("MulBackward0", "norms", "float32", (4, 128, 768), 2, 3_145_728),
    )
    ordered = tuple(sorted(tensors, key=lambda tensor: -tensor.bytes))
    return tuple(SavedBlock(f"layers.{n}", sum(t.bytes for t in ordered), ordered) for n in range(layers))


def some_blocks_memory(layers: int) -> tuple[BlockMemory, ...]:
    """Every layer's backward adds 20 MB of gradients and frees what `some_saved_blocks` save, but for 512 bytes."""
    change = 20 * MB - some_saved_blocks(1)[0].bytes + 512
    return tuple(
        BlockMemory(
            module=f"layers.{n}",
            forward_bytes=some_saved_blocks(1)[0].bytes,
            before_bytes=280 * MB + change * (layers - 1 - n),
            after_bytes=280 * MB + change * (layers - n),
            peak_bytes=295 * MB + change * (layers - 1 - n),
            gradient_bytes=20 * MB,
        )
        for n in range(layers)
    )


def a_prediction(spec: CellSpec, *, peak_bytes: int = 3_500 * MB, **more: Any) -> Prediction:
    by_category = dict.fromkeys(CATEGORIES, 0)
    by_category |= {"parameters": peak_bytes // 4, "activations": peak_bytes - 2 * (peak_bytes // 4)}
    by_category["optimizer_state"] = peak_bytes // 4
    size = {"num_params": 128_634_624, "num_params_without_head": 120_954_624, "residual_stream_bytes": 1_572_864}
    work = {"flops": {"forward": 10**12, "backward": 2 * 10**12}, "softmax_flops": (10**9, 8 * 10**8)}
    work |= {"flops_by_range": {"feed-forward": (6 * 10**11, 12 * 10**11)}, "min_bytes_moved": 10**9}
    peak = {"peak_bytes": peak_bytes, "peak_phase": "backward", "by_category": by_category, "largest": some_blocks(4)}
    peak |= {"activation_peak_bytes": by_category["activations"], "activation_peak_phase": "backward"}
    forward = {"forward_peak_bytes": peak_bytes * 8 // 10, "forward_end_bytes": peak_bytes * 7 // 10}
    at_end = {category: size * 7 // 10 for category, size in by_category.items()}
    return Prediction(**{"spec": spec, "forward_end_by_category": at_end} | size | work | peak | forward | more)


def some_blocks(count: int, *, bytes_: int = 400 * MB) -> tuple[MemoryBlock, ...]:
    """Blocks of falling size in the feed-forward network and the softmax, in turn."""
    sites = (
        Site("mm", "transformer.py:158 forward", "feed-forward", "forward"),
        Site("_softmax", "transformer.py:135 weigh", "softmax", "forward"),
    )
    return tuple(
        MemoryBlock(bytes_ - number * 10 * MB, "activations", sites[number % 2], (4, 128, 3072), "float32")
        for number in range(count)
    )


def an_oom_report(*, observed: bool = True, **more: Any) -> OomReport:
    """A training step of the xl size that ran out of memory in its forward."""
    spec = a_spec(size="xl", d_model=2560, d_ff=10240, num_layers=32, num_heads=32, pass_="train-step")
    by_category = {
        "parameters": 13_600 * MB, "gradients": 0, "optimizer_state": 27_200 * MB, "activations": 38_000 * MB,
        "temporary": 1_200 * MB, "buffers": 16 * MB,
    }  # fmt: skip
    fields: dict[str, Any] = {"spec": spec, "phase": "forward", "observed": observed, "by_category": by_category}
    fields |= {"request_bytes": 2_147_483_648, "live_bytes": sum(by_category.values()), "capacity_bytes": 81_000 * MB}
    fields |= {"largest": some_blocks(20, bytes_=2_000 * MB), "prediction": a_prediction(spec, peak_bytes=96_000 * MB)}
    return OomReport(**(fields | more))


def many_events(events: int, *, live: int = 5_000, phases: Iterable[str] = ("forward", "backward")) -> MemoryReport:
    """A report of this many events: blocks of growing sizes come and go, with up to `live` at once."""
    blocks = (events - 1) // 2
    sites = tuple(
        Site("mm", f"transformer.py:{line} forward", "feed-forward", "forward", line % 2 == 1) for line in range(50)
    )
    # Allocate `live` of them, then free the oldest and allocate another in turn, then free all.
    live = min(live, blocks)
    born = [1 + number if number < live else 2 * number - live + 2 for number in range(blocks)]
    last = blocks - live
    died = [live + 1 + 2 * number if number < last else blocks + number + 1 for number in range(blocks)]
    sizes = [512 * (1 + number * 7919 % 4001) for number in range(blocks)]
    names = tuple(phases)
    events = 2 * blocks + 1
    edges = [1 + (events - 1) * number // len(names) for number in range(len(names) + 1)]
    change = [0] * (events + 1)
    for number, size in enumerate(sizes):
        change[born[number]] += size
        change[died[number]] -= size
    totals, total = [], 0
    for value in change[:events]:
        total += value
        totals.append(total)
    spans = tuple(
        PhaseSpan(name, edges[number], edges[number + 1], max(totals[edges[number] - 1 : edges[number + 1]]))
        for number, name in enumerate(names)
    )
    of_blocks: dict[str, Any] = {"bytes": tuple(sizes), "born": tuple(born), "died": tuple(died), "events": events}
    of_blocks |= {"categories": tuple(number % len(CATEGORIES) for number in range(blocks)), "form_of": (), "forms": ()}
    of_blocks |= {"site_of": tuple(number % len(sites) for number in range(blocks)), "sites": sites}
    of_phases = {"phases": spans, "peak_bytes": max(totals), "peak_event": totals.index(max(totals))}
    of_phases |= {"forward_end_bytes": totals[spans[0].end - 1], "allocator_peak_bytes": max(totals)}
    return msgspec.structs.replace(a_memory_report(), **of_blocks | of_phases)
