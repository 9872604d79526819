"""Small cells of attention alone."""

from __future__ import annotations

from typing import Any

from cs336_tui.config.spec import CellSpec


def attention_spec(**changes: Any) -> CellSpec:
    """Two sequences of 24 tokens, d 8, on the CPU, with `changes`."""
    fields: dict[str, Any] = {
        "workload": "attention",
        "d_model": 8,
        "d_ff": 1,
        "num_layers": 1,
        "num_heads": 1,
        "vocab_size": 1,
        "context_length": 24,
        "batch_size": 2,
        "edition": "2026",
        "arch": "swiglu-rope",
        "pass_": "forward+backward",
        "precision": "fp32",
        "device": "cpu",
        "warmup_steps": 1,
        "measure_steps": 2,
        "threads": 1,  # on a busy machine two threads wait for one another
    }
    fields |= changes
    heads = fields["num_heads"]
    name = f"d{fields['d_model'] // heads}"
    return CellSpec(**({"size": name if heads == 1 else f"{heads}x{name}"} | fields))
