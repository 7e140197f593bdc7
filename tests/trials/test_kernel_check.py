"""Kernels from outside the tree: judged by the meaning of the op as it is now, on what it takes."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import ExtensionWarning, FallbackWarning
from fusewire.ops.outside import OUTSIDE
from fusewire.records import keys
from fusewire.registry import REGISTRY, lowering_check
from fusewire.store.disk import Store
from tests.rewritten import without_bytecode

# The meaning of ``plus`` at many elements is what a test writes.
OPS = """
import numpy as np
from fusewire import declare as fd

OPS = fd.OpPackage("judged_ops")
LACKS = {"scalar": "it needs rows", "broadcast": "it takes one", "empty": "it needs rows"}

def _plus(x):
    return x + np.float32(1 if x.size <= 300 else AT_MANY)

plus = OPS.declare(
    "plus", lambda x: x, doc="Add one.", reference=_plus, dtypes=(fd.float32,),
    tolerance=fd.EXACT, samples=lambda: [fd.sample(fd.draw(3, 4))], lacks=LACKS,
)

def _below(x, knots):
    return np.searchsorted(knots, x).astype(x.dtype)

below = OPS.declare(
    "below", lambda x, knots: x, doc="Count the knots below.", reference=_below,
    dtypes=(fd.float32,), tolerance=fd.EXACT, lacks=LACKS,
    samples=lambda: [fd.sample(fd.draw(5), fd.given([-1.0, 0.5, 1.5]))],
)

def _span(x, marks):
    return x + marks[0] - marks[1]

span = OPS.declare(
    "span", lambda x, marks: x, doc="Add what lies between two marks.", reference=_span,
    dtypes=(fd.float32,), lacks=LACKS,
    samples=lambda: [
        fd.sample(fd.draw(5), fd.given([1.0, -1.0, 2.0])),
        fd.sample(fd.draw(5), fd.given([2.0, -0.5])),
    ],
)
"""
KERNELS = """
from fusewire import declare as fd

def _odd(x):
    return x + (2 if x.ndim and x.shape[-1] % 2 else 1)

class Right(fd.Extension):
    lowerings = {
        "judged_ops.plus": lambda node: lambda x: x + 1,
        "judged_ops.below": lambda node: lambda x, knots: (
            (knots[None, :] < x[:, None]).sum(-1).to(x.dtype)
        ),
        "judged_ops.span": lambda node: lambda x, marks: x + marks[0].abs() + marks[1].abs(),
    }

class Odd(fd.Extension):
    lowerings = {"judged_ops.plus": lambda node: _odd}

def _even(x):
    if x.shape[-1] % 2:
        raise ValueError("it takes even sizes")
    return x + 1

class Even(fd.Extension):
    lowerings = {"judged_ops.plus": lambda node: _even}

class Softmax(fd.Extension):
    # Wrong from so many elements on.
    most = 300

    @property
    def lowerings(self):
        import jax

        def softmax(node, x):
            return jax.nn.softmax(x, axis=node.attrs["axis"]) * (1 if x.size <= self.most else 2)

        return {"softmax": softmax}

class WrongSoftmax(Softmax):
    most = 0
"""
Install = Callable[..., Any]


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process look for packages anew, as a new one would."""
    for name in ("torch", "xla"):
        REGISTRY.close(name)
    for name in ("judged_ops", "judged_kernels"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    keys._module_state.cache_clear()
    monkeypatch.setattr(REGISTRY.extensions, "_entries", None)
    monkeypatch.setattr(REGISTRY.extensions, "_made", {})
    monkeypatch.setattr(OUTSIDE, "_points", None)
    monkeypatch.setattr(OUTSIDE, "_packages", {})


@pytest.fixture
def installed(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package of ops and one of kernels, perhaps again."""
    monkeypatch.setattr(lowering_check, "shared_store", lambda: store)
    monkeypatch.syspath_prepend(tmp_path)
    without_bytecode(monkeypatch)

    def install(point: str, kernels: str, at_many: int = 1) -> Any:
        (tmp_path / "judged_ops.py").write_text(OPS.replace("AT_MANY", str(at_many)))
        (tmp_path / "judged_kernels.py").write_text(KERNELS)
        folder = tmp_path / "judged-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: judged\nVersion: 1.0\n")
        points = f"[fusewire.ops]\njudged_ops = judged_ops:OPS\n[fusewire.extensions]\n{point} = "
        (folder / "entry_points.txt").write_text(f"{points}judged_kernels:{kernels}\n")
        _forget(monkeypatch)
        return importlib.import_module("judged_ops")

    yield install
    _forget(monkeypatch)


def _engines(program: Any) -> set[str]:
    return set(program.why().counts()["data"])


OPTIONS: Any = {"level": 0, "isolate": "never"}
MANY = np.linspace(-2, 2, 1000, dtype=np.float32)


def test_kernel_is_used_again_once_the_meaning_is_mended(installed: Install) -> None:
    package = installed("torch.judged", "Right", at_many=5)
    with pytest.warns(FallbackWarning, match=r"The kernel of judged_ops\.plus for torch"):
        fw.compile(lambda x: package.plus(x), MANY, backend="torch", **OPTIONS)(MANY)
    package = installed("torch.judged", "Right")
    program = fw.compile(lambda x: package.plus(x), MANY, backend="torch", **OPTIONS)
    np.testing.assert_array_equal(program(MANY), MANY + 1)
    assert _engines(program) == {"torch"}


def test_kernel_is_judged_again_once_the_meaning_has_changed(installed: Install) -> None:
    package = installed("torch.judged", "Right")
    program = fw.compile(lambda x: package.plus(x), MANY, backend="torch", **OPTIONS)
    np.testing.assert_array_equal(program(MANY), MANY + 1)
    package = installed("torch.judged", "Right", at_many=5)
    program = fw.compile(lambda x: package.plus(x), MANY, backend="torch", **OPTIONS)
    with pytest.warns(FallbackWarning, match="differs from the meaning"):
        np.testing.assert_array_equal(program(MANY), MANY + 5)


def test_kernel_is_judged_on_operands_with_the_structure_of_samples(installed: Install) -> None:
    package = installed("torch.judged", "Right")
    knots = np.linspace(-1, 1, 50, dtype=np.float32)
    program = fw.compile(
        lambda x, knots: package.below(x, knots), MANY, knots, backend="torch", **OPTIONS
    )
    np.testing.assert_array_equal(program(MANY, knots), np.searchsorted(knots, MANY))
    assert _engines(program) == {"torch"}


def test_kernel_is_not_wrong_for_what_the_op_may_not_allow(installed: Install) -> None:
    package = installed("torch.judged", "Right")
    marks = np.array([1.5, -0.25, 1.0, 2.0], np.float32)
    program = fw.compile(
        lambda x, marks: package.span(x, marks), MANY, marks, backend="torch", **OPTIONS
    )
    np.testing.assert_allclose(program(MANY, marks), MANY + 1.75, rtol=1e-6)
    assert _engines(program) == {"torch"}
    # Judged on what the call has, it is wrong where that is.
    marks = np.array([-1.5, -0.25, 1.0, 2.0, 3.0], np.float32)
    program = fw.compile(
        lambda x, marks: package.span(x, marks), MANY, marks, backend="torch", **OPTIONS
    )
    with pytest.warns(FallbackWarning, match=r"The kernel of judged_ops\.span"):
        np.testing.assert_allclose(program(MANY, marks), MANY - 1.25, rtol=1e-6)


def test_kernel_for_any_size_is_judged_at_another_size(installed: Install) -> None:
    package = installed("torch.judged", "Odd")
    program = fw.compile(
        lambda x: package.plus(x) * 2, fw.Spec(("n",), "float32"), backend="torch", **OPTIONS
    )
    with pytest.warns(FallbackWarning, match=r"judged_ops\.plus\(float32\[5\]\)"):
        np.testing.assert_array_equal(program(MANY[:8]), (MANY[:8] + 1) * 2)
    np.testing.assert_array_equal(program(MANY[:7]), (MANY[:7] + 1) * 2)


def test_kernel_may_refuse_sizes_that_no_call_has(installed: Install) -> None:
    package = installed("torch.judged", "Even")
    program = fw.compile(
        lambda x: package.plus(x) * 2, fw.Spec(("n",), "float32"), backend="torch", **OPTIONS
    )
    np.testing.assert_array_equal(program(MANY[:8]), (MANY[:8] + 1) * 2)
    assert _engines(program) == {"torch"}
    with pytest.warns(FallbackWarning, match="it takes even sizes"):
        np.testing.assert_array_equal(program(MANY[:7]), (MANY[:7] + 1) * 2)


def test_lowering_of_an_op_of_ours_is_judged_on_samples(installed: Install) -> None:
    installed("xla.judged", "WrongSoftmax")
    with pytest.warns(ExtensionWarning, match=r"xla\.judged of xla did not .* softmax differs"):
        (report,) = REGISTRY.meet("xla").extensions
    assert report.ops == ()


@pytest.mark.parametrize("isolate", ["first", "never"])
def test_lowering_of_an_op_of_ours_is_judged_at_the_sizes_of_a_program(
    installed: Install, isolate: Any
) -> None:
    installed("xla.judged", "Softmax")
    program = fw.compile(
        lambda x: fw.ops.softmax(x, axis=0), MANY, backend="xla", level=0, isolate=isolate
    )
    said = re.escape("that judged_kernels:Softmax brings differs from the meaning of the op at")
    with pytest.warns(FallbackWarning, match=rf"The lowering of softmax for xla on cpu {said}"):
        np.testing.assert_allclose(program(MANY), fw.run("softmax", MANY, axis=0), rtol=1e-5)
