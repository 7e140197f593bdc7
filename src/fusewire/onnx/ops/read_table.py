"""Every ONNX op we read, as ``Op`` or ``domain:Op``, and what turns it into ours.

Families that only files have, and nothing writes, are loaded by the reader alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.onnx.ops import (
    learning,
    loss,
    microsoft,
    patches,
    random,
    training,
)
from fusewire.onnx.ops.write_table import FAMILIES
from fusewire.onnx.read.call import Read

READERS: Mapping[str, Read] = {
    name: read
    for family in (*FAMILIES, learning, loss, microsoft, patches, random, training)
    for name, read in family.READERS.items()
}
