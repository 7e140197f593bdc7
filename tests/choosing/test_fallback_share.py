"""Plans that spend too much of their time outside of the engines asked for are refused."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.cli import main
from fusewire.errors import RefusedError
from fusewire.store.disk import Store

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
OPTIONS: Any = {"budget_seconds": 2.0, "fallback": "allow"}


@pytest.fixture
def mesa() -> Iterator[str]:
    """An engine that sleeps at ``tanh`` and refuses ``sin``, so that the reference takes little."""
    name = fw.register("tests.toy:mesa", "mesa")
    yield name
    fw.unregister(name)


def slopes(x: Any) -> Any:
    return np.tanh(np.sin(np.tanh(x)))


def test_plan_is_kept_that_spends_little_outside(mesa: str, store: Store) -> None:
    program = fw.compile(fw.trace(slopes, X), X, backend=mesa, max_fallback_share=0.5, **OPTIONS)
    np.testing.assert_allclose(program(X), slopes(X), rtol=1e-5)
    # A named backend is measured, and the first call waits for that.
    assert [row.name for row in program.why().tried if row.is_chosen] == ["mesa"]
    assert program.why().counts()["data"] == {"mesa": 2, "reference": 1}


def test_plan_is_refused_that_spends_more_outside(mesa: str, store: Store) -> None:
    graph = fw.trace(slopes, X)
    with pytest.raises(RefusedError) as caught:
        fw.compile(graph, X, backend=mesa, max_fallback_share=1e-6, **OPTIONS)
    said = re.match(
        r"mesa would spend ([\d.]+)% of its time outside of mesa, and max_fallback_share=1e-06 "
        r"allows 0.0%\. 1 node runs there: <node .*sin: .*>: mesa does not run sin\. "
        "Raise max_fallback_share, or choose another backend",
        str(caught.value),
    )
    assert said is not None, str(caught.value)
    # The engine sleeps for 40 ms, and the sine of 64 numbers takes a small part of one.
    assert 0 <= float(said[1]) < 50
    # What another limit accepted is not recalled for this one.
    fw.compile(graph, X, backend=mesa, max_fallback_share=0.5, **OPTIONS)
    with pytest.raises(RefusedError):
        fw.compile(graph, X, backend=mesa, max_fallback_share=1e-6, **OPTIONS)


def determinants(x: Any) -> Any:
    return np.exp(np.linalg.det(np.tanh(x)))


MATRICES = np.random.default_rng(0).standard_normal((8, 4, 4)).astype(np.float32)


def test_second_engine_that_is_listed_is_not_outside(store: Store) -> None:
    graph = fw.trace(determinants, MATRICES)
    with pytest.raises(RefusedError, match=r"% of its time outside of openvino, .*det"):
        fw.compile(graph, MATRICES, backend="openvino", max_fallback_share=0.01, **OPTIONS)
    names = ["openvino", "onnxruntime"]
    program = fw.compile(graph, MATRICES, backend=names, max_fallback_share=0.01, **OPTIONS)
    np.testing.assert_allclose(program(MATRICES), determinants(MATRICES), rtol=1e-4)
    assert "reference" not in program.why().counts()["data"]


def test_command_refuses_the_plan_too(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(determinants, MATRICES), path)
    asked = ["run", str(path), "--backend", "openvino", "--fallback", "allow", "--budget", "2"]
    result = CliRunner().invoke(main, [*asked, "--max-fallback-share", "0.01"])
    assert result.exit_code != 0
    assert "of its time outside of openvino" in " ".join(result.output.split())
