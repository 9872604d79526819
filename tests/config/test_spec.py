"""Cell specs refuse every invalid value in one line that names the value and what is allowed."""

from typing import Any

import msgspec
import pytest
from hypothesis import given

from cs336_tui.config.spec import (
    ARCHES,
    EDITIONS,
    MAX_COUNT,
    PASSES,
    PRECISIONS,
    SYNCS,
    CellSpec,
    SpecError,
    canonical_device,
    dims_of,
    size_names,
)
from tests.samples import a_spec
from tests.strategies import run_specs

COUNTS = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "context_length", "batch_size", "measure_steps")


def refused(field: str, **changes: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        a_spec(**changes)
    error = caught.value
    assert error.field == field
    assert "\n" not in str(error)
    assert str(error.value) in str(error)
    assert error.allowed in str(error)
    return error


@pytest.mark.parametrize(("field", "least"), [*dict.fromkeys(COUNTS, 1).items(), ("warmup_steps", 0), ("seed", 0)])
def test_counts_start_at_one_or_zero_and_are_those_of_a_tensor(field: str, least: int) -> None:
    assert getattr(a_spec(**{field: least} if field in ("warmup_steps", "seed") else {}), field) >= least
    for value in (least - 1, -(10**12)):
        assert f"at least {least}" in str(refused(field, **{field: value}))
    assert f"at most {MAX_COUNT}" in str(refused(field, **{field: MAX_COUNT + 1}))


def test_threads_are_torchs_own_or_at_least_one() -> None:
    assert [a_spec(threads=threads).threads for threads in (None, 1)] == [None, 1]
    refused("threads", threads=0)


@pytest.mark.parametrize(
    ("field", "attribute", "allowed"),
    [
        ("pass", "pass_", PASSES),
        ("precision", "precision", PRECISIONS),
        ("arch", "arch", ARCHES),
        ("sync", "sync", SYNCS),
        ("edition", "edition", EDITIONS),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(field: str, attribute: str, allowed: tuple[str, ...]) -> None:
    error = refused(field, **{attribute: "sideways"})
    assert "sideways" in str(error)
    assert all(name in str(error) for name in allowed)
    for name in allowed:
        a_spec(**{attribute: name})


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("fp16", "choose fp16-mixed"),
        ("FP16", "choose fp16-mixed"),
        ("float32", "choose fp32"),
        ("bfloat16", "choose bf16 or bf16-mixed"),
        ("bf16-true", "choose bf16;"),
        ("fp8", "choose fp8-mixed"),
        ("fp64", "choose fp32"),
        ("int8", "not offered: torch has no training step in it"),
        ("nvfp4", "not offered: torch has no training step in it"),
        ("mxfp8", "not offered: torch has no training step in it"),
    ],
)
def test_a_precision_that_goes_by_another_name_or_is_none_is_answered(typed: str, answer: str) -> None:
    error = str(refused("precision", precision=typed))
    assert error.startswith(f"precision {typed}: {answer}")
    assert all(name in error for name in PRECISIONS)


def test_float8_needs_linear_layers_whose_sides_are_multiples_of_16() -> None:
    assert a_spec(precision="fp8-mixed", d_model=768, d_ff=3072).precision == "fp8-mixed"
    assert "multiples of 16" in str(refused("d_ff", precision="fp8-mixed", d_ff=1365))
    assert "multiples of 16" in str(refused("d_model", precision="fp8-mixed", d_model=744))
    assert a_spec(precision="fp8-mixed", d_ff=1365, model="my.own:Model").d_ff == 1365, "its layers are its own"
    alone = {"workload": "attention", "attention": "sdpa", "pass_": "forward"}
    assert "choose bf16-mixed" in str(refused("precision", precision="fp8-mixed", **alone))


def test_heads_divide_the_model_width_and_are_of_even_width_for_rotary_embeddings() -> None:
    assert all(number in str(refused("d_model", d_model=770)) for number in ("770", "12"))
    odd = {"d_model": 36, "num_heads": 12}
    error = refused("num_heads", **odd)
    assert "odd width 3" in str(error)
    assert a_spec(**odd, arch="gelu-learned").dims.d_model == 36
    assert a_spec(**odd, model="my.own:Model").dims.d_model == 36, "what it does with positions is its own affair"


@pytest.mark.parametrize(
    ("given_name", "canonical"),
    [("cpu", "cpu"), ("mps", "mps"), ("cuda", "cuda:0"), ("cuda:3", "cuda:3"), ("cuda:007", "cuda:7")],
)
def test_devices_have_one_spelling(given_name: str, canonical: str) -> None:
    assert canonical_device(given_name) == canonical


@pytest.mark.parametrize(
    "name", ["", "auto", "gpu", "CUDA:0", "cuda:", "cuda:-1", "cuda:x", "cuda:0 ", "cuda:9999", "tpu"]
)
def test_other_devices_are_refused_and_other_spellings_by_a_cell(name: str) -> None:
    refused("device", device="cuda")
    with pytest.raises(SpecError, match="cuda:N"):
        canonical_device(name)


@given(run_specs())
def test_any_cell_survives_the_wire_and_says_pass(spec: CellSpec) -> None:
    data = msgspec.json.encode(spec)
    assert b'"pass":' in data
    assert msgspec.json.decode(data, type=CellSpec) == spec
    assert spec.total_steps == spec.warmup_steps + spec.measure_steps
    assert spec.tokens_per_step == spec.batch_size * spec.context_length


def test_a_damaged_cell_does_not_decode() -> None:
    data = msgspec.json.encode(a_spec()).replace(b'"num_heads":12', b'"num_heads":7')
    with pytest.raises(msgspec.ValidationError, match="768"):
        msgspec.json.decode(data, type=CellSpec)


def test_the_same_name_is_another_model_in_another_edition() -> None:
    assert dims_of("xl", "2025").d_model == 1600
    assert dims_of("xl", "2026") == dims_of("2.7B", "2024")
    assert (dims_of("10B", "2026").num_layers, dims_of("10B", "2026").d_ff) == (50, 12288)


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_named_size_is_a_model_that_can_be_built(edition: str) -> None:
    widths = []
    for name in size_names(edition):
        dims = dims_of(name, edition)
        assert dims.d_model // dims.num_heads % 2 == 0
        assert dims.vocab_size == 10_000
        widths.append(dims.d_model)
    assert widths == sorted(widths)


def test_an_unknown_size_or_edition_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"size 2\.7B: edition 2026 has tiny, small, medium, large, xl, 10B"):
        dims_of("2.7B", "2026")
    with pytest.raises(SpecError, match="edition 1999: expected one of 2024, 2025, 2026"):
        dims_of("small", "1999")


def test_the_title_of_a_custom_size_tells_its_dimensions() -> None:
    spec = a_spec(size="custom", d_model=64, d_ff=256, num_layers=2, num_heads=4)
    assert spec.title.startswith("custom 64/256/2/4 · ctx ")
    assert a_spec().title.startswith("small · ctx ")
