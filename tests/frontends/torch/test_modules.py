"""Modules become graphs that compute what the modules do."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fusewire.contract.frontend import Reading, Spec, Structure
from fusewire.errors import FusewireError, TraceError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Symbol
from fusewire.ops.table import verify
from tests.frontends.torch.modules import Block, Lambda, check, compare, converted, draw

MODULES = {
    "mlp": (nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4)), (3, 8)),
    "conv": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
            nn.Softmax(-1),
        ),
        (2, 3, 12, 12),
    ),
    "block": (Block(), (2, 6, 16)),
    "lstm": (nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True), (3, 4, 5)),
    "encoder": (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16)),
}


@pytest.mark.parametrize("name", MODULES)
def test_graph_computes_what_the_module_does(name: str) -> None:
    module, shape = MODULES[name]
    check(module.eval(), draw(*shape))


@pytest.mark.parametrize("name", ["mlp", "conv", "block"])
def test_batch_stays_open(name: str) -> None:
    module, shape = MODULES[name]
    reading = converted(module.eval(), Spec(("n", *shape[1:])))
    for batch in (2, 5):
        compare(module, reading, [draw(batch, *shape[1:])])


def test_composites_are_kept() -> None:
    ops = [node.op for node in converted(Block().eval(), draw(2, 6, 16)).graph.nodes]
    assert ops.count("layer_norm") == 2
    assert ops.count("linear") == 4
    assert {"attention", "gelu"} <= set(ops)


def test_parameters_are_not_copied() -> None:
    module = nn.Linear(4, 3)
    graph = converted(module, draw(2, 4)).graph
    found = {value.constant.array.ctypes.data for value in graph.constants if value.constant}
    assert found == {module.weight.data_ptr(), module.bias.data_ptr()}


def test_size_that_the_module_fixes_is_refused() -> None:
    module = Lambda(lambda x: x.reshape(2, 8))
    with pytest.raises(TraceError, match=r"torch\.export cannot make a graph"):
        converted(module, Spec(("n", 4)))


def test_module_itself_answers_on_arrays() -> None:
    module, x = nn.Linear(4, 3), draw(2, 4)
    function = converted(module, x).function
    assert function is not None
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(function.function(x), expected)


def test_tied_parameters_are_one_constant() -> None:
    class Tied(nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.table(x))

    graph = check(Tied(), np.array([1, 3, 0])).graph
    assert len(graph.constants) == 1


def test_bfloat16_parameters_are_not_copied() -> None:
    module = nn.Linear(4, 3, bias=False).to(torch.bfloat16)
    (weight,) = converted(module, Spec((2, 4), "bfloat16")).graph.constants
    assert weight.constant is not None
    assert str(weight.type) == "bfloat16[3, 4]"
    assert weight.constant.array.ctypes.data == module.weight.data_ptr()


def test_parameters_in_another_order_are_copied_to_rows() -> None:
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    graph = check(module, draw(1, 3, 6, 6)).graph
    assert all(v.constant and v.constant.array.flags.c_contiguous for v in graph.constants)


def test_sizes_are_expressions_of_names() -> None:
    module = Lambda(lambda x, y: (torch.cat([x, x]), x.reshape(-1), torch.cat([x, x]).sum(1) + y))
    graph = converted(module, Spec(("n", 4)), Spec(("2*n",))).graph
    assert [str(v.type) for v in graph.outputs] == [
        "float32[2*n, 4]",
        "float32[4*n]",
        "float32[2*n]",
    ]


def test_branches_and_loops() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def run(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, (x,))
        start = torch.zeros((), dtype=torch.int64)
        return y, while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (start, x))

    for sign in (1, -1):
        check(Lambda(run), sign * np.abs(draw(3, 4)))


def test_wrapped_regions_are_taken_in() -> None:
    def run(x: Any) -> Any:
        with torch.enable_grad():
            y = x * 2
        with torch.autocast("cpu", enabled=False):
            return y + 1

    check(Lambda(run), draw(3, 4))


def test_sizes_that_a_run_tells() -> None:
    check(Lambda(lambda x: (x[x > 0], torch.nonzero(x > 0))), draw(3, 4))


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda x: x.sum(1) + torch.arange(8.0)[: x.shape[0]], {2: True, 8: True, 9: False}),
        (lambda x: x + 1 if x.shape[0] >= 5 else x, {4: False, 5: True, 99: True}),
        (lambda x: x[1:].squeeze(), {2: False, 4: True, 9: True}),
    ],
    ids=["at most", "at least", "not one"],
)
def test_graph_holds_where_the_code_was_traced(function: Any, sizes: dict[int, bool]) -> None:
    module = Lambda(function)
    graph = converted(module, Spec(("n", 4))).graph
    for size, holds in sizes.items():
        bound = bind_symbols(graph, {Symbol("n"): size})
        if holds:
            verify(bound)
            compare(module, Reading(bound, Structure((), ()), Structure((), ())), [draw(size, 4)])
        else:
            with pytest.raises(FusewireError):
                verify(bound)
