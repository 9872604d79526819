"""Number of parameters implied by a spec, against the model built from it."""

from __future__ import annotations

from typing import Any

import pytest

from cs336_tui.analysis.fields import implied_params
from cs336_tui.worker.workload.transformer import Transformer
from tests.samples import a_spec


@pytest.mark.parametrize(
    "changes", [{}, {"arch": "gelu-learned", "context_length": 64}, {"num_layers": 1, "vocab_size": 64, "d_ff": 100}]
)
def test_implied_parameters_are_the_models(changes: dict[str, Any]) -> None:
    spec = a_spec(**changes)
    model = Transformer(spec.dims, arch=spec.arch, context_length=spec.context_length, device="meta")
    assert implied_params(spec) == model.num_params
