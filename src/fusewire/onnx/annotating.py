"""Write notes into the nodes of a model file, where viewers such as Netron show them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Notes = Mapping[str, str]


def annotate(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    notes: Mapping[str, Notes],
    otherwise: Notes,
) -> None:
    """Copy a model that was read before, with notes in the metadata of its nodes.

    ``notes`` are found by ``node_label``; other nodes get those of ``otherwise``. Weights outside
    of the file stay where they are.
    """
    from onnx import load_model, save_model

    model = load_model(source, load_external_data=False)
    for node in _nodes(model):
        for key, text in notes.get(node_label(node), otherwise).items():
            node.metadata_props.add(key=key, value=text)
    save_model(model, Path(path))


def node_label(node: Any) -> str:
    """Name a node as graphs that are read from files name it as their source."""
    return f"{node.op_type} {node.name or next(iter(node.output), '')}"


def _nodes(model: Any) -> Iterator[Any]:
    """Yield all nodes, also of functions and bodies."""
    waiting = [model.graph, *model.functions]
    while waiting:
        for node in waiting.pop().node:
            yield node
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else [*attribute.graphs]
