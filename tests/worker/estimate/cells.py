"""Cells for predictions: of named sizes, and small ones of any kind."""

from hypothesis import strategies as st

from cs336_tui.config.spec import ARCHES, PASSES, PRECISIONS, CellSpec
from tests.samples import sized
from tests.worker.measure.cells import small_spec


def named_spec(size: str, **changes: object) -> CellSpec:
    """A cell of a named size, on the CPU, with `changes`."""
    return small_spec(**({**sized(size), "context_length": 128, "batch_size": 4, "threads": None} | changes))


@st.composite
def small_cells(draw: st.DrawFn) -> CellSpec:
    """Cells of any pass, precision and model whose step is followed in milliseconds."""
    heads = draw(st.integers(1, 3))
    return small_spec(
        num_heads=heads,
        d_model=heads * 2 * draw(st.integers(1, 40)),
        d_ff=draw(st.integers(1, 300)),
        num_layers=draw(st.integers(1, 3)),
        vocab_size=draw(st.integers(1, 3000)),
        context_length=draw(st.integers(1, 70)),
        batch_size=draw(st.integers(1, 4)),
        pass_=draw(st.sampled_from(PASSES)),
        precision=draw(st.sampled_from([name for name in PRECISIONS if name != "fp8-mixed"])),  # of any dimensions
        arch=draw(st.sampled_from(ARCHES)),
        device=draw(st.sampled_from(["cpu", "cuda:0", "mps"])),
    )
