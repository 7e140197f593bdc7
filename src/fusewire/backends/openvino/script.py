"""Write a region as a script that needs only NumPy and OpenVINO."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fusewire.backends.openvino.api import openvino
from fusewire.backends.openvino.building import model_of
from fusewire.backends.openvino.devices import settings
from fusewire.backends.openvino.holding import Holding
from fusewire.backends.openvino.info import launch_of
from fusewire.backends.openvino.refusal import held, with_plain_bodies
from fusewire.backends.openvino.storage import LONG
from fusewire.contract.backend import ENGINE_NAN, NAN, Config
from fusewire.contract.script import Script
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType

_SOURCE = """import openvino


def load():
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(HERE / "model.xml"), {plugin!r}, {settings})
    request = compiled.create_infer_request()
    types = [port.get_element_type().to_dtype() for port in compiled.inputs]

    def run(inputs):
        found = request.infer([x.astype(of) for x, of in zip(inputs, types)])
        return [np.array(found[port]) for port in compiled.outputs]

    return run
"""


def script(core: Any, plugin: str, region: Graph, config: Config) -> Script | None:
    """Write the model with its weights; None where elements cross the border in pieces."""
    holding = held(with_plain_bodies(region))
    graph = holding.graph
    if not all(_is_plain(holding, value) for value in (*graph.inputs, *graph.outputs)):
        return None
    launch = launch_of(config)
    # What was not copied must be there until all is written.
    model, _kept = model_of(holding, launch.get(NAN) != ENGINE_NAN)
    with tempfile.TemporaryDirectory() as folder:
        openvino.serialize(model, f"{folder}/model.xml", f"{folder}/model.bin")
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    own = settings(core, plugin, launch)
    return Script(_SOURCE.format(plugin=plugin, settings=own), files)


def _is_plain(holding: Holding, value: Value) -> bool:
    if not isinstance(value.type, TensorType):
        return False
    storage, of = holding.storage(value), value.type.dtype
    return storage.parts == 1 and (of in LONG or storage.carrier == of.numpy)
