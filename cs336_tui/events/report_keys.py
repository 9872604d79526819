"""Cells that share a prediction, a measurement or a report: one spec that stands for all that are alike."""

import msgspec

from cs336_tui.config.ranks import sharing_of
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.variants import is_imported, short
from cs336_tui.events.prediction import Prediction

_OF_PASS: dict[str, str] = {
    "inference": "inference keeps no activations for a backward and has no gradients and no optimizer state",
    "forward": "forward has no gradients and no optimizer state; its activations are kept for a backward",
    "forward+loss": "forward+loss has no gradients and no optimizer state; its activations are kept for a backward",
    "backward": "backward has no optimizer state; its forward and loss run untimed and count to its memory",
    "forward+backward": "forward+backward has no optimizer state",
}


def prediction_note(spec: CellSpec) -> str:
    found = [_OF_PASS.get(spec.pass_, "")]
    found += [axis.unpredicted for axis in AXES.values() if getattr(spec, axis.field) != axis.default]
    if spec.checkpoint:
        found.append("FLOPs of backward include what activation checkpointing computes again")
    if spec.ranks > 1:
        name = sharing_of(spec.parallel).name
        if is_imported(name):
            found.append(f"memory of a rank alone: what {short(name)} keeps and sends is not predicted")
        if name == "fsdp2" and spec.device != "cpu":
            found.append("under fsdp2 tensors count as they are, without an allocator's rounding")
    return "; ".join(filter(None, found))


def predicted_for(spec: CellSpec, found: Prediction) -> Prediction:
    """The prediction of an equal need, as one of this spec."""
    return msgspec.structs.replace(found, spec=spec, note=prediction_note(spec))


_OF_NO_PREDICTION = {field: axis.alike for field, axis in AXES.items() if "prediction" not in axis.kinds}
_OF_A_RUN = tuple(field for field in _OF_NO_PREDICTION if "time" in AXES[field].kinds)


def prediction_key(spec: CellSpec) -> CellSpec:
    """The same spec for all cells that need the same: steps, seed, synchronisation and the like do not matter."""
    device = spec.device.partition(":")[0] + (":0" if spec.device.startswith("cuda") else "")
    return msgspec.structs.replace(spec, **_OF_NO_PREDICTION, device=device)


def run_key(spec: CellSpec) -> CellSpec:
    """The same spec for all cells that need the same and run the same way (compiled or not), so measure alike."""
    return msgspec.structs.replace(prediction_key(spec), **{field: getattr(spec, field) for field in _OF_A_RUN})


def report_key(spec: CellSpec) -> CellSpec:
    """The same spec for all cells of which a report tells the same: as `run_key`, on its device."""
    return msgspec.structs.replace(run_key(spec), device=spec.device)
