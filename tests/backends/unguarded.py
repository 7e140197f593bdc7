"""Run an engine's executables without the guards of a plan, with indices from anywhere.

    python tests/backends/unguarded.py openvino

Prints a row for each op, dtype and index: whether the engine raised, and whether it answered with
numbers that are in no operand. It may die: run it in a process of its own. The table, whose numbers
are found nowhere else, lies between pages that nobody may touch.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from fusewire.contract.backend import Offer
from fusewire.contract.region import build, first_device
from fusewire.ir.types import type_symbols
from fusewire.registry import REGISTRY
from tests.planning.index_models import FAMILIES, VALUES, IndexModel, models
from tests.planning.integer_graphs import fenced

OPS = (
    "gather", "gather last", "embedding", "gather_elements", "gather_nd", "gather_nd places",
    "gather_nd batch", "scatter_elements set", "scatter_elements add", "scatter_elements max",
    "scatter_nd set", "scatter_nd add", "reverse_sequence", "dynamic_top_k",
)  # fmt: skip
FAR = {"far": 10**6, "far below": -(10**6), "2^30": 2**30, "-2^30": -(2**30)}


def rows(engine: str) -> Iterator[dict[str, Any]]:
    """Run every op that the engine takes whole."""
    backend: Any = REGISTRY.backends.get(engine)
    device = first_device(backend)
    for model in models(OPS):
        if not model.name.endswith("input"):
            continue
        answers = backend.claim(model.graph, device)
        if not all(isinstance(x, Offer) and _may_run(x, model) for x in answers):
            continue
        executable = build(backend, model.graph, device)
        (node,) = [x for x in model.graph.nodes if x.op in model.name]
        yield from (row | {"op": node.op} for row in _rows(model, executable))


def _may_run(offer: Offer, model: IndexModel) -> bool:
    """Tell whether an engine compiles a model as it is: not if it needs sizes that a run tells."""
    return offer.shapes == "dynamic" or not any(
        True for output in model.graph.outputs for _ in type_symbols(output.type)
    )


def _rows(model: IndexModel, executable: Any) -> Iterator[dict[str, Any]]:
    numbers = {name: value(model.dim) for name, value in VALUES.items()} | FAR
    family = FAMILIES[model.name.partition(",")[0]]
    for seed, (name, number) in enumerate(numbers.items()):
        inputs = model.with_index(number)
        if inputs is None:
            continue
        table = np.arange(1, inputs[0].size + 1, dtype=np.float32).reshape(inputs[0].shape)
        taken = fenced([table + np.float32(2**20), *inputs[1:]], seed)
        try:
            (answer,) = executable.run(taken)[:1]
            found, has_raised = np.asarray(answer), False
        except Exception:  # noqa: BLE001 - whatever an engine throws
            found, has_raised = np.zeros(0), True
        is_length = model.name.startswith(("reverse", "dynamic"))
        places = range(-family.dim, family.dim)
        is_place = "scatter" not in model.name and "top_k" not in model.name
        strange = ~np.isin(found, [*taken[0].ravel(), 0])
        yield {
            "model": model.name,
            "index": name,
            "is_allowed": 0 <= number <= family.dim if is_length else number in places,
            "raised": has_raised,
            "strange": bool(strange.any()) if is_place else False,
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for row in rows(sys.argv[1]):
        print(json.dumps(row), flush=True)
