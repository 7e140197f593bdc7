"""Names of what nodes of the model make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.ir.graph import Value
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Body, Ref, Step


def name_outputs(
    emitter: Emitter,
    found: Sequence[Ref],
    wanted: Sequence[str],
    kept: Mapping[Value, str] | None = None,
) -> None:
    """Give what nodes make the names of outputs; inputs, constants and repeats are copied.

    ``kept`` are names that other values should have if nothing else has them.
    """
    made = {name for step in emitter.steps for name in step.outputs}
    renamed: dict[str, str] = {}
    for ref, name in zip(found, wanted, strict=True):
        if ref.name in made and ref.name not in renamed:
            renamed[ref.name] = name
        elif ref.name != name:
            emitter.give(ref, name)
    for value, name in (kept or {}).items():
        ref = emitter.ref(value)
        if ref.name in made and ref.name not in renamed and name not in emitter.model.taken:
            renamed[ref.name] = emitter.model.own(name, name)
    rename(emitter.steps, renamed)


def rename(steps: Sequence[Step], names: Mapping[str, str]) -> None:
    """Change names wherever they are made or used, in bodies too."""
    for step in steps:
        step.inputs = [names.get(name, name) for name in step.inputs]
        step.outputs = [names.get(name, name) for name in step.outputs]
        for attr in step.attrs.values():
            if isinstance(attr, Body):
                rename(attr.steps, names)
