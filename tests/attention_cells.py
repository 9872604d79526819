"""Small cells of attention alone."""

from typing import Any

from cs336_tui.config.spec import CellSpec
from tests.watching import small_spec


def attention_spec(**changes: Any) -> CellSpec:
    """Two sequences of 24 tokens, d 8, on the CPU, with `changes`."""
    fields: dict[str, Any] = {"d_model": 8, "num_heads": 1, "d_ff": 1, "vocab_size": 1, "measure_steps": 2}
    fields |= {"workload": "attention", "pass_": "forward+backward", "context_length": 24, "batch_size": 2} | changes
    heads = fields["num_heads"]
    name = f"d{fields['d_model'] // heads}"
    return small_spec(**{"size": name if heads == 1 else f"{heads}x{name}", "check": "auto"} | fields)
