"""Who uses one engine does not pay for another."""

import pytest

from tests.architecture.source import SOURCE
from tests.architecture.test_libraries import FOLDERS, loaded_libraries

# What comes with each engine; ONNX is the language in which one of them is spoken to.
LIBRARIES = {
    "reference": set(),
    "xla": {"jax", "jaxlib"},
    "onnxruntime": {"onnxruntime", "onnx", "google"},
    "openvino": {"openvino"},
    "webgpu": {"wgpu"},
}
SCRIPT = """
import numpy as np
import fusewire as fw
x = np.ones((2, 3), np.float32)
program = fw.compile(lambda x: x + x, x, backend="{engine}", fallback="error", isolate=False)
assert (program(x) == 2).all()
"""


@pytest.mark.parametrize("engine", LIBRARIES)
def test_using_one_engine_imports_no_other(engine: str) -> None:
    found = loaded_libraries(SOURCE, SCRIPT.format(engine=engine)) & FOLDERS.keys()
    assert found == LIBRARIES[engine]
