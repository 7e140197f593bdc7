"""What a backend was shown to do: the record beside it, and the twelve flags that follow from it.

`fusewire conform BACKEND --record` writes the record. Only the ops behind each flag are written by
hand. Must never name a backend.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusewire.errors import FormatError
from fusewire.ops.declare import Trait
from fusewire.ops.table import all_ops

FILE = "proven.json"
# The key of the records of further devices.
OTHERS = "devices"
_OPTIONAL = ("dtypes", "device_id")
# The dtype that everybody asks about: a flag does not fall for want of another.
COMMON = "float32"
# Flags that follow from ops: one is held if all of its ops are proven.
OPS: Mapping[str, tuple[str, ...]] = {
    "basic ops": (
        "add",
        "subtract",
        "multiply",
        "divide",
        "negative",
        "abs",
        "maximum",
        "minimum",
        "power",
        "exp",
        "log",
        "sqrt",
        "tanh",
        "equal",
        "less",
        "where",
        "cast",
        "reshape",
        "transpose",
        "broadcast_to",
        "slice",
    ),
    "linear algebra": ("matmul", "dot_general", "tensordot", "linear", "gemm", "outer"),
    "convolution": ("conv", "conv_transpose"),
    "recurrent": ("rnn", "lstm", "gru"),
    "attention": ("attention", "softmax", "rotary"),
    "quantized": (
        "quantize",
        "dequantize",
        "dynamic_quantize",
        "matmul_integer",
        "conv_integer",
        "qlinear_matmul",
        "qlinear_conv",
    ),
}
# Flags that testing.demonstration measures.
MEASURED = ("graph optimisation", "memory optimisation", "JIT")
# Flags that nothing can show yet, and why.
ABSENT: Mapping[str, str] = {
    "distributed": "A region cannot run on several devices yet.",
    "autograd": "Graphs have no gradients yet.",
}
CUSTOM = "custom ops"
FLAGS = (*OPS, CUSTOM, *MEASURED, *ABSENT)


@dataclass(frozen=True)
class Capability:
    """A flag, whether it is held, and the evidence or what is missing."""

    flag: str
    is_held: bool
    reason: str


@dataclass(frozen=True)
class Shown:
    """What a measurement showed."""

    is_held: bool
    reason: str


@dataclass(frozen=True)
class ConformanceRecord:
    """The result of the conformance suite on one device: status by op, without refused ops.

    ``dtypes`` are those in which every sample passes, of ops that are not proven in all of them.
    ``device`` is the name of the device and ``device_id`` its id, which older records lack.
    """

    backend: str
    version: str
    device: str
    date: str
    ops: Mapping[str, str]
    shown: Mapping[str, Shown]
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    device_id: str = ""

    def proves(self, op: str) -> bool:
        """Return whether an op is proven: in float32 at least, if it is in no more."""
        return self.ops.get(op) == "proven" or COMMON in self.dtypes.get(op, ())

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data that people can review, with ops in groups."""
        grouped: dict[str, list[str]] = {}
        for op, status in self.ops.items():
            grouped.setdefault(status, []).append(op)
        held = {**asdict(self), "ops": grouped}
        # One line each.
        held["dtypes"] = {op: " ".join(names) for op, names in self.dtypes.items()}
        return {key: value for key, value in held.items() if value or key not in _OPTIONAL}

    @staticmethod
    def from_data(data: Any) -> ConformanceRecord:
        """Read what ``to_data`` wrote; FormatError for anything else."""
        try:
            held = dict(data)
            ops = {op: status for status, ops in held.pop("ops").items() for op in ops}
            shown = {flag: Shown(**found) for flag, found in held.pop("shown").items()}
            dtypes = {op: tuple(names.split()) for op, names in held.pop("dtypes", {}).items()}
            return ConformanceRecord(ops=ops, shown=shown, dtypes=dtypes, **held)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"This is not a record of a backend: {error}.") from error

    def families(self) -> dict[str, tuple[int, int]]:
        """Count the proven tensor ops and all tensor ops, by family."""
        tensor_ops = [op for op in all_ops().values() if not op.is_(Trait.HOST)]
        proven = Counter(op.family for op in tensor_ops if self.ops.get(op.name) == "proven")
        return {
            name: (proven[name], count)
            for name, count in Counter(op.family for op in tensor_ops).items()
        }


def write_records(records: Sequence[ConformanceRecord]) -> str:
    """Write the records of a backend's devices as a file; the first is that of its first device."""
    first, *others = (record.to_data() for record in records)
    return json.dumps({**first, **({OTHERS: others} if others else {})}, indent=1) + "\n"


def read_records(text: str) -> list[ConformanceRecord]:
    """Read what ``write_records`` wrote; FormatError for anything else."""
    try:
        held = json.loads(text)
        others = held.pop(OTHERS, [])
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError(f"This is not a record of a backend: {error}.") from error
    return [ConformanceRecord.from_data(data) for data in (held, *others)]


def with_record(
    records: Sequence[ConformanceRecord], new: ConformanceRecord, *, is_first: bool
) -> list[ConformanceRecord]:
    """Put a record in the place of that of the same device, or beside the others."""
    first = [new] if is_first else list(records[:1])
    others = [x for x in records[1:] if x.device_id != new.device_id]
    return [*first, *others, *([] if is_first else [new])]


def path_of(reference: str) -> Path | None:
    """Return the path of the record of a backend "module:Class": beside its module."""
    spec = importlib.util.find_spec(reference.partition(":")[0])
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / FILE


def records_of(name: str, reference: str) -> list[ConformanceRecord]:
    """Read the records of a backend, that of its first device first; malformed ones are none."""
    path = path_of(reference)
    if path is None or not path.is_file():
        return []
    try:
        found = read_records(path.read_text(encoding="utf-8"))
    except FormatError:
        return []
    return found if all(record.backend == name for record in found) else []


def record_of(name: str, reference: str, device: str | None = None) -> ConformanceRecord | None:
    """Return the record of a backend on a device, on its first if none is named; or None."""
    found = records_of(name, reference)
    if device is None:
        return found[0] if found else None
    return next((record for record in found if record.device_id == device), None)


def capabilities(
    record: ConformanceRecord | None, version: str, opens_table: bool
) -> dict[str, Capability]:
    """Compute every flag; ``opens_table`` says whether extensions may add ops."""
    found = [_capability(flag, record) for flag in (*OPS, *MEASURED)]
    if record is not None and record.version != version:
        since = f" Shown with {record.version}; {version} is installed."
        found = [Capability(x.flag, x.is_held, x.reason + since) for x in found]
    custom = (
        "Extensions can add ops to its table."
        if opens_table
        else "It has no table that extensions can add to."
    )
    found.append(Capability(CUSTOM, opens_table, custom))
    found += [Capability(flag, False, reason) for flag, reason in ABSENT.items()]
    by_flag = {x.flag: x for x in found}
    return {flag: by_flag[flag] for flag in FLAGS}


def _capability(flag: str, record: ConformanceRecord | None) -> Capability:
    if record is None:
        return Capability(flag, False, "There is no record: run `fusewire conform NAME --record`.")
    if flag in MEASURED:
        shown = record.shown.get(flag, Shown(False, "It was not measured."))
        return Capability(flag, shown.is_held, shown.reason)
    left = [op for op in OPS[flag] if not record.proves(op)]
    if left:
        said = ", ".join(f"{op} is {record.ops.get(op, 'refused')}" for op in left)
        return Capability(flag, False, f"{said[0].upper()}{said[1:]}.")
    some = [op for op in OPS[flag] if record.ops.get(op) != "proven"]
    only = [f" {op} in {', '.join(record.dtypes[op])}." for op in some]
    return Capability(flag, True, f"{', '.join(OPS[flag])} are proven.{''.join(only)}")
