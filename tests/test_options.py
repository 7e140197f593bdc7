"""Options that mean nothing are refused by name, and checks of a program reach its caller."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.errors import CheckError, OptionsError

X = np.ones(3, np.float32)


@pytest.mark.parametrize(
    "option",
    [
        {"backend": 3},
        {"backend": None},
        {"deadline": 0},
        {"deadline": float("nan")},
        {"deadline": "soon"},
        {"memory_limit": 0},
        {"max_crossings": -1},
        {"max_fallback_share": -0.1},
        {"max_fallback_share": 1.0},
        {"max_fallback_share": float("nan")},
        {"max_fallback_share": "little"},
        {"threads": 0},
        {"fallback": "perhaps"},
        {"level": 7},
        {"backend_config": "spinning"},
        {"backend_config": {"onnxruntime": {"spinning": False}}},
    ],
)
def test_option_that_means_nothing_is_refused_by_name(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(OptionsError, match=f"^{name}="):
        fw.Options(**option)


@pytest.mark.parametrize("option", [{"level": 0}, {"budget_seconds": 0}])
def test_share_of_the_time_that_nobody_would_measure_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(OptionsError, match=r"^max_fallback_share=0\.01: .* measure no times"):
        fw.Options(max_fallback_share=0.01, **option)


@pytest.mark.parametrize("fallback", ["error", "allow"])
@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_what_a_program_checks_reaches_its_caller(backend: str, fallback: Any) -> None:
    graph = fw.trace(
        lambda x: ops.check(x + x, np.sum(x) > 0, message="too small"), fw.Spec((3,), "float32")
    )
    program = fw.compile(graph, backend=backend, fallback=fallback)
    np.testing.assert_array_equal(program(X), X + X)
    with pytest.raises(CheckError, match="too small"):
        program(-X)


def test_options_of_a_backend_are_not_for_what_takes_its_place() -> None:
    name = fw.register("tests.toy:blind", "blind")
    try:
        program = fw.compile(
            np.tanh, X, backend=name, backend_config={"sharpness": 3}, fallback="allow", level=0
        )
        np.testing.assert_allclose(program(X), np.tanh(X))
    finally:
        fw.unregister(name)
    with pytest.raises(OptionsError, match="reference has no option sharpness"):
        fw.Options(backend="reference", backend_config={"sharpness": 3})
