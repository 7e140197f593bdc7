"""A model file that travels to the hosts of a cluster, once each.

Its bytes are in Ray's object store, which the processes of a host share, and become one file per
host: every actor maps the same pages.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewire.errors import JobError
from fusewire.store.files import Folder
from fusewire.store.stamps import file_digest
from fusewire.system.folders import user_name

_SHARED = Path("/tmp")


@dataclass(frozen=True)
class SharedModel:
    """A model file by its path and digest, and its bytes for hosts that do not have it."""

    source: str
    digest: str
    # A reference into the object store; None where every host has the file.
    content: Any = None

    @staticmethod
    def of(path: str | os.PathLike[str], put: Any = None) -> SharedModel:
        """Share a file; ``put`` stores bytes for other hosts, as ``ray.put`` does."""
        source = Path(path).resolve()
        digest = file_digest(source)
        if digest is None:
            raise JobError(f"The model {path} cannot be read. Give the path of a model file.")
        return SharedModel(str(source), digest, put and put(source.read_bytes()))

    def path(self) -> Path:
        """Return a file with this content on this host: the original, or a copy made once."""
        if file_digest(self.source) == self.digest:
            return Path(self.source)
        copies = _SHARED / f"fusewire-models-{user_name()}"
        folder = Folder(copies, "folder of models", "nothing")
        name = f"{self.digest}{Path(self.source).suffix}"
        if file_digest(copies / name) != self.digest:
            folder.write(name, (self._bytes(),), durable=False)
        return copies / name

    def _bytes(self) -> bytes:
        if self.content is None:
            raise JobError(
                f"The model {self.source} is not on this host, or was changed since the job "
                "began. Mount its folder on every host, or start the job again."
            )
        import ray

        content: bytes = ray.get(self.content)
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise JobError(f"The bytes of the model {self.source} were changed on their way.")
        return content
