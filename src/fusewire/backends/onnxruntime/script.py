"""Write a region as a script that needs only NumPy and ONNX Runtime."""

from __future__ import annotations

from fusewire.backends.onnxruntime.executable import PROVIDERS, is_foreign
from fusewire.backends.onnxruntime.lowering import lower
from fusewire.backends.onnxruntime.providers import DISABLED
from fusewire.contract.backend import Config
from fusewire.contract.script import Script
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType

_SOURCE = """import onnxruntime


def load():
    options = onnxruntime.SessionOptions()
    options.use_deterministic_compute = {deterministic}
    threads = {threads}
    if threads:
        options.intra_op_num_threads = options.inter_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(HERE / "model.onnx"), options, providers={providers}, disabled_optimizers={disabled}
    )
    names = [x.name for x in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs)))
"""


def script(region: Graph, config: Config) -> Script | None:
    """Write the model with its weights; None for dtypes that NumPy alone cannot hand over."""
    types = [value.type for value in (*region.inputs, *region.outputs)]
    if not all(isinstance(of, TensorType) and not is_foreign(of.dtype) for of in types):
        return None
    source = _SOURCE.format(
        deterministic=config.deterministic,
        threads=config.threads,
        providers=PROVIDERS,
        disabled=list(DISABLED),
    )
    return Script(
        source, {"model.onnx": lower(region, config.options).proto(set()).SerializeToString()}
    )
