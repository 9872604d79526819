"""The folder in which a user wants torch.compile's caches.

torch names one itself in the same variable, as soon as a part of it is imported. So this is imported before torch, in
the app as in the fork server, and what it read then is what the user said.
"""

from __future__ import annotations

import os

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
USERS = os.environ.get(VARIABLE)
"""None where the user names no folder."""


def put_back() -> None:
    """Have the environment name what the user named."""
    if USERS is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = USERS
