"""The contract of frontends, and what a trace keeps of the user's code."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

from fusewire.contract.frontend import Limits, Spec, Structure
from fusewire.dtypes import float32
from fusewire.errors import DimError, ShapeMismatchError
from fusewire.frontends.trace import TraceFrontend
from fusewire.frontends.trace.calls import ROWS
from fusewire.frontends.trace.tracer import METHODS
from fusewire.ir.dims import symbol
from fusewire.ops.interpret import interpret
from fusewire.registry import REGISTRY
from tests.frontends import functions as module

functions: Any = module  # without types


def test_functions_are_accepted_and_other_things_are_not() -> None:
    frontend = TraceFrontend()
    for source in (functions.softmax, partial(functions.softmax, axis=0), functions.Perceptron()):
        assert frontend.accepts(source)
    for thing in ("model.onnx", 3, np.ones(2), functions.Perceptron):
        assert not frontend.accepts(thing)


def test_it_is_found_by_its_entry_point() -> None:
    assert isinstance(REGISTRY.frontend_for(functions.softmax), TraceFrontend)


def test_spec_reads_names_and_expressions() -> None:
    spec = Spec((2, "n", "n + 1", symbol("m")), np.float32)
    assert spec.dtype is float32
    assert spec.shape == (2, symbol("n"), symbol("n") + 1, symbol("m"))
    with pytest.raises(DimError, match="from 0 up"):
        Spec((-1,))


def test_structure_takes_trees_apart_and_puts_them_together() -> None:
    tree = {"a": [1.0, (2.0, "x")], "b": functions.Estimate(3.0, None), "c": {}}
    structure, leaves = Structure.of(tree, float)
    assert leaves == [1.0, 2.0, 3.0]
    assert structure.names == ("a.0", "a.1.0", "b.0")
    assert structure.restore(leaves) == tree
    assert structure.flatten(tree) == leaves
    with pytest.raises(ShapeMismatchError, match=r"the argument\.a was a list"):
        structure.flatten({**tree, "a": ()})
    with pytest.raises(ShapeMismatchError, match="part of the program"):
        structure.flatten({**tree, "a": [1.0, (2.0, "y")]})


def test_inputs_are_named_after_parameters_and_nodes_carry_their_line() -> None:
    graph = TraceFrontend().read(
        functions.lstm_cell,
        [
            Spec((2, 3)),
            (Spec((2, 4)), Spec((2, 4))),
            {n: Spec((k, 16)) for n, k in (("w", 3), ("u", 4))} | {"b": Spec((16,))},
        ],
    )
    assert [v.name for v in graph.inputs] == [
        "x",
        "state.0",
        "state.1",
        "params.w",
        "params.u",
        "params.b",
    ]
    assert graph.name == "lstm_cell"
    assert graph.output_names == ("output0", "output1")
    first = functions.lstm_cell.__code__.co_firstlineno
    assert graph.nodes[0].source == f"functions.py:{first + 2}"
    lines = {node.source for node in graph.nodes}
    assert all(source and source.startswith("functions.py:") for source in lines)
    # The sigmoid is a function of its own, and so are its lines.
    assert f"functions.py:{functions.sigmoid.__code__.co_firstlineno + 1}" in lines


def test_results_keep_their_structure() -> None:
    def function(x: Any, flag: str = "no", *, scale: float = 2.0) -> Any:
        return {"y": x * scale, "rest": [x, flag, (3, None)]}

    reading = TraceFrontend().open(function, Limits()).convert([np.ones(2)])
    assert reading.graph.output_names == ("y", "rest.0")
    found = reading.results.restore(interpret(reading.graph, [np.ones(2)]))
    np.testing.assert_array_equal(found["y"], [2, 2])
    assert found["rest"][1:] == ["no", (3, None)]


def test_arguments_can_be_given_by_name() -> None:
    graph = TraceFrontend().read(functions.softmax, {"x": Spec((3, 4)), "axis": 0})
    assert [v.name for v in graph.inputs] == ["x"]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(interpret(graph, [x])[0], functions.softmax(x, 0), rtol=1e-6)


def test_known_arrays_are_computed_while_tracing() -> None:
    def function(x: Any) -> Any:
        table = np.zeros((4, 4))
        for i in range(4):
            table[i, : i + 1] = np.arange(i + 1) ** 2
        if table.sum() > 3 and table[3, 3] == 9:
            table = table / table.max()
        return x @ table

    assert [node.op for node in TraceFrontend().read(function, [np.ones(4)]).nodes] == ["matmul"]


def test_the_users_function_and_module_stay_as_they_are() -> None:
    before = dict(vars(functions))
    code, closure = functions.embed.__code__, functions.embed.__closure__
    TraceFrontend().read(functions.embed, [np.array([1, 2])])
    assert dict(vars(functions)) == before
    assert functions.embed.__code__ is code
    assert functions.embed.__closure__ is closure
    assert functions.embed.__globals__["np"] is np


def test_traces_of_many_threads_do_not_meet() -> None:
    found: dict[int, Any] = {}

    def work(n: int) -> None:
        for _ in range(5):
            graph = TraceFrontend().read(functions.gram_schmidt, [Spec((n, 3), "float64")])
            a = np.random.default_rng(n).standard_normal((n, 3))
            found[n] = np.abs(interpret(graph, [a])[0] - functions.gram_schmidt(a)).max()

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {3, 4, 5, 6}
    assert max(found.values()) < 1e-12


def test_repeated_elements_are_made_by_the_graph() -> None:
    graph = TraceFrontend().read(lambda x: x + np.zeros((100, 100)), [Spec((100, 100), "float64")])
    assert all(v.tensor.size == 1 for v in graph.constants)


def test_closures_methods_and_nested_functions_are_seen() -> None:
    weights = {"w": [np.arange(6.0).reshape(2, 3)]}

    class Model:
        def __init__(self) -> None:
            self.bias = np.ones(3)

        @property
        def twice(self) -> Any:
            return np.zeros(3) + self.bias * 2

        def forward(self, x: Any, which: Any) -> Any:
            def inner(y: Any) -> Any:
                out = np.empty((3, 3))
                out[:] = weights["w"][0][which] @ np.ones((3, 3))
                return out + y

            return inner(x) + self.twice

    model, x, which = Model(), np.ones(3), np.array(1)
    graph = TraceFrontend().read(model.forward, [x, which])
    np.testing.assert_allclose(interpret(graph, [x, which])[0], model.forward(x, which))


def test_every_method_has_a_row() -> None:
    for name in METHODS:
        function = getattr(np, name)
        assert function in ROWS or isinstance(function, np.ufunc), name


NAMESPACE = [
    (functions.namespace_softmax, (np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),)),
    (functions.namespace_statistics, (np.linspace(-1, 1, 12).reshape(3, 4) ** 3,)),
    (functions.namespace_rotation, (np.linspace(-2, 2, 8).reshape(4, 2), np.array(0.5))),
]


@pytest.mark.parametrize(("function", "arrays"), NAMESPACE, ids=[f.__name__ for f, _ in NAMESPACE])
def test_array_namespace_agrees_with_the_strict_one(function: Any, arrays: Any) -> None:
    wanted = function(*(strict.asarray(x) for x in arrays))
    graph = TraceFrontend().read(function, arrays)
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    for found, one in zip(interpret(graph, arrays), results, strict=True):
        real = np.asarray(one)
        assert found.dtype == real.dtype
        np.testing.assert_allclose(found, real, rtol=1e-5, atol=1e-7)


def test_array_namespace_has_the_names_of_the_standard() -> None:
    skipped = {"Device", "ModuleType"}
    names = [
        n
        for n in dir(strict)
        if not n.startswith("_") and "strict" not in n.lower() and n not in skipped
    ]

    def function(x: Any) -> Any:
        xp = x.__array_namespace__()
        assert not [n for n in names if not hasattr(xp, n)]
        return x

    TraceFrontend().read(function, [np.ones(2)])
