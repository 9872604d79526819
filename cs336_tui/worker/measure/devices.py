"""What torch knows of the machine's devices: names, memory, GPU identities."""

from __future__ import annotations

import os
import re
from typing import Any

import torch


def device_label(device: torch.device) -> str:
    """The device in words; a CPU by the widest instructions that torch uses on it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "mps":
        return "Apple GPU (Metal)"
    capability = torch.backends.cpu.get_cpu_capability()
    return "CPU" if capability == "DEFAULT" else f"CPU ({capability})"


def nvml_uuid(index: int, properties: Any) -> str | None:
    """The UUID of CUDA device `index` as NVML spells it: ``GPU-...``, or ``MIG-...`` for a slice of a GPU.

    torch gives the bare UUID, and for a slice the whole GPU's; the slice's own is in ``CUDA_VISIBLE_DEVICES``, without
    which CUDA shows no slice but the first.
    """
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(visible) and visible[index].startswith("MIG-"):
        return visible[index]
    uuid = str(getattr(properties, "uuid", "") or "")
    if not uuid:
        return None
    return uuid if re.match("GPU-|MIG-", uuid) else f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{uuid}"
