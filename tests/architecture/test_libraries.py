"""A library is imported only in its own folder, and `import fusewire` loads none of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import PACKAGE, SOURCE, imports, is_within, modules
from tests.architecture.test_public_names import exported_names

# What every module may import beside the standard library.
CORE = ("numpy", "ml_dtypes")

# Everything else that may be imported at all, and where.
FOLDERS = {
    "jax": ("backends.xla",),
    "jaxlib": ("backends.xla",),
    "onnx": ("onnx", "testing.onnx_suite"),
    # Protocol Buffers, which onnx brings: what parsing raises is there.
    "google": ("onnx", "serve.messages"),
    "onnx_ir": ("onnx",),
    "onnxruntime": ("backends.onnxruntime",),
    # Its one file imports it without its telemetry.
    "openvino": ("backends.openvino.api",),
    # Triton's interpreter runs kernels on torch tensors; torch.compile imports dynamo by itself.
    "torch": (
        "backends.inductor",
        "backends.torch",
        "backends.triton",
        "dynamo",
        "frontends.torch",
    ),
    # WebGPU's context loads it before a driver that it cannot be loaded after.
    "triton": ("backends.triton", "backends.webgpu.context"),
    "wgpu": ("backends.webgpu",),
    "fsspec": ("store",),
    "cryptography": ("store.signing",),
    "obstore": ("store.transport",),
    "ray": ("ray", "serve.ray"),
    "pyarrow": ("ray",),
    "orjson": ("serve",),
    "starlette": ("serve",),
    "uvicorn": ("serve",),
    "uvloop": ("serve",),
    "grpc": ("serve",),
    "prometheus_client": ("serve.metrics",),
    # If it is installed, profiles are sent to it.
    "opentelemetry": ("profiling.telemetry",),
    "click": ("cli",),
    "rich": ("cli", "tables"),
    # The conformance kit is run by pytest.
    "pytest": ("testing",),
}


def library_problems(root: Path) -> list[str]:
    problems = []
    for module in modules(root):
        for found in imports(module):
            library = found.target.split(".")[0]
            if library in (*sys.stdlib_module_names, *CORE, PACKAGE):
                continue
            folders = FOLDERS.get(library, ())
            if not any(is_within(module.name, f"{PACKAGE}.{folder}") for folder in folders):
                allowed = " or ".join(folders) or "nowhere"
                problems.append(
                    f"{module.shown}:{found.line}: imports {library}, allowed in: {allowed}"
                )
    return problems


def loaded_libraries(root: Path, script: str) -> set[str]:
    """Run a script in a fresh process and give the top-level modules it leaves loaded."""
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport sys; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


def test_library_is_imported_in_its_own_folder_only() -> None:
    problems = library_problems(SOURCE)
    assert not problems, "\n".join(problems)


def test_import_loads_no_library() -> None:
    assert not loaded_libraries(SOURCE, f"import {PACKAGE}") & FOLDERS.keys()


def test_public_names_load_no_library() -> None:
    names = sorted(exported_names(SOURCE))
    script = f"import {PACKAGE}\nfor name in {names}: getattr({PACKAGE}, name)"
    assert not loaded_libraries(SOURCE, script) & FOLDERS.keys()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("ops/planted.py", "import jax.numpy as jnp"),
        ("ops/planted.py", "def later():\n    from torch import nn\n"),
        ("plan/planted.py", 'importlib.import_module("onnxruntime")'),
        ("backends/planted/engine.py", "import openvino"),
        ("backends/xlarge/planted.py", "import jax"),
        ("plan/planted.py", "import click"),
        ("ops/planted.py", "import scipy.special"),
    ],
)
def test_planted_library_is_found(plant: Plant, path: str, text: str) -> None:
    assert any("planted" in problem for problem in library_problems(plant(path, text)))


def test_library_in_its_own_folder_is_not_reported(plant: Plant) -> None:
    root = plant("backends/xla/planted.py", "import jax")
    assert not any("planted" in problem for problem in library_problems(root))


def test_library_loaded_by_the_face_is_found(plant: Plant) -> None:
    root = plant("__init__.py", "import click")
    assert "click" in loaded_libraries(root, f"import {PACKAGE}")
