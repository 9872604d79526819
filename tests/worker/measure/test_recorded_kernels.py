"""Kinds and short names of kernels recorded on real GPUs: an H100, a B200 and a V100."""

from collections import Counter
from pathlib import Path

import pytest

from cs336_tui.analysis.kernels import short_name
from cs336_tui.events.kernel_report import kernel_kind, operator_kind
from tests.session.recordings.recordings import events_of

NAMES = Path(__file__).parents[2] / "data/kernel-names.tsv"
COUNTS = {
    "h100-bert-small-inference": {"elementwise": 19, "reduction": 11, "copy": 1, "matrix multiply": 26, "other": 4},
    "h100-timesformer-inference": {
        "copy": 251, "other": 1, "elementwise": 76, "reduction": 49, "matrix multiply": 133, "softmax": 24,
    },
    "b200-eager-inference": {"copy": 308, "elementwise": 41, "other": 252, "reduction": 73, "matrix multiply": 181,
        "communication": 74,
    },
    "v100-training-rank0": {
        "copy": 1800, "other": 1510, "elementwise": 1755, "reduction": 545, "matrix multiply": 430, "softmax": 10,
        "optimizer": 45,
    },
}  # fmt: skip
"""Kernels of each kind in a recording."""

a_recording = pytest.mark.parametrize("name", COUNTS)


def rows() -> list[tuple[str, ...]]:
    lines = NAMES.read_text().splitlines()
    return [tuple(line.split("\t")) for line in lines if not line.startswith("#")]


def recorded(name: str) -> list[tuple[str, str | None]]:
    """Each kernel's name, and the operator that launched it, of a recording."""
    events = events_of(name)
    operators = {each["args"].get("External id"): each["name"] for each in events if each.get("cat") == "cpu_op"}
    kernels = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return [(each["name"], operators.get(each["args"].get("External id"))) for each in kernels]


@pytest.mark.parametrize(("kind", "short", "name"), rows())
def test_a_recorded_kernel_has_its_kind_and_a_name_that_tells(kind: str, short: str, name: str) -> None:
    assert (kernel_kind(name), short_name(name)) == (kind, short)


@a_recording
def test_a_kernel_is_of_the_kind_of_the_operator_that_launched_it(name: str) -> None:
    """Kinds of operators follow other rules than kinds of kernels, so that each checks the other."""
    kernels = recorded(name)
    assert Counter(kernel_kind(kernel) for kernel, _ in kernels) == COUNTS[name]
    differing = {
        (operator, kernel)
        for kernel, operator in kernels
        if operator and operator_kind(operator) not in ("other", kernel_kind(kernel))
    }
    assert differing <= {("aten::addmm", "Memset (Device)")}, "a product split over k clears its workspace first"


@a_recording
def test_short_names_of_recorded_kernels_have_no_plumbing(name: str) -> None:
    for kernel in {kernel for kernel, _ in recorded(name)}:
        short = short_name(kernel)
        assert len(short) <= 80 or "<" not in kernel, short
        assert not any(word in short for word in ("enable_if", "Metadata", "::", "lambda", "{")), short
        assert short.count("<") == short.count(">") - short.count("->"), short
        assert not short.endswith("elementwise"), f"does not say what it computes: {kernel}"
