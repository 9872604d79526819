"""What a user brings: models, losses, optimizers and attention functions, imported by name in a child process."""

from cs336_tui.workload.imported.callables import imported_attention, imported_loss, imported_optimizer
from cs336_tui.workload.imported.models import ImportedModel, import_model

__all__ = ["ImportedModel", "import_model", "imported_attention", "imported_loss", "imported_optimizer"]
