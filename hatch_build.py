"""The wheel has what lies in ``share/``, man pages and completion scripts, where `make docs` or `make dist` made it."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Shared(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        files = [path for path in Path(self.root, "share").rglob("*") if path.is_file()]
        if self.target_name == "wheel" and version == "standard":
            build_data["shared_data"].update({str(path): str(path.relative_to(self.root)) for path in files})
