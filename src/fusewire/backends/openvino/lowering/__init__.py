"""The lowering table: every op that OpenVINO runs, and how. Imports the engine."""

from dataclasses import replace

from fusewire.backends.openvino.lowering import (
    activation,
    complexes,
    contraction,
    control,
    conversion,
    convolution,
    floats,
    indexing,
    integers,
    logic,
    movement,
    normalization,
    own,
    padding,
    pooling,
    quantization,
    recurrent,
    reduction,
    resampling,
    sorting,
    transformer,
    vision,
)
from fusewire.backends.openvino.lowering.entry import Entry

_FAMILIES = (
    floats, integers, logic, conversion, movement, padding, indexing, reduction, contraction,
    convolution, pooling, complexes, sorting, normalization, resampling,
    activation, quantization, transformer, vision, recurrent, control,
)  # fmt: skip
_PLAIN = {name: entry for family in _FAMILIES for name, entry in family.TABLE.items()}
LOWERINGS: dict[str, Entry] = own.with_own(
    {
        name: replace(entry, complex=complexes.PAIRED[name]) if name in complexes.PAIRED else entry
        for name, entry in _PLAIN.items()
    }
)
