"""Modules become graphs that compute what the modules do."""

import numpy as np
import pytest
import torch
from torch import nn

from fusewire.contract.frontend import Spec
from fusewire.errors import TraceError
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
