"""The search for the largest batch, on predictions made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cs336_tui.analysis.targets import Target
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction
from cs336_tui.tui.controllers.estimates import BatchSearch
from tests.made_predictions import made_prediction
from tests.watching import small_spec


class Predictions(Mapping[CellSpec, Prediction]):
    """Of every cell: 10 bytes a sequence at the peak, of which the allocator takes 15 of the device."""

    def __getitem__(self, spec: CellSpec) -> Prediction:
        size = spec.batch_size
        return made_prediction(spec, peak_bytes=10 * size, reserved_bytes=15 * size)

    def __iter__(self) -> Iterator[CellSpec]:
        raise NotImplementedError

    def __len__(self) -> int:
        return 1


def test_it_counts_what_the_allocator_takes_of_the_device() -> None:
    target = Target(name="A GPU", device="cuda:0", capacity_bytes=100, free_bytes=100, source="made", context=0)
    largest = BatchSearch().of(Predictions(), {}, small_spec(device="cuda:0"), target)
    assert largest.fit is not None
    assert largest.fit.largest == 6
