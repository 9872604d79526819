"""What a user brings: models, losses, optimizers and attention functions, imported by name in a child process."""

from cs336_tui.worker.workload.imported.attention import ImportedAttention, imported_attention
from cs336_tui.worker.workload.imported.callables import imported_loss, imported_optimizer
from cs336_tui.worker.workload.imported.finding import find
from cs336_tui.worker.workload.imported.models import ImportedModel, import_model
from cs336_tui.worker.workload.imported.problems import ImportProblem, is_users_file
from cs336_tui.worker.workload.imported.sources import revisions_of

__all__ = [
    "ImportProblem",
    "ImportedAttention",
    "ImportedModel",
    "find",
    "import_model",
    "imported_attention",
    "imported_loss",
    "imported_optimizer",
    "is_users_file",
    "revisions_of",
]
