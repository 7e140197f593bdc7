"""A compiled module is called as the module is, and answers as it does."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import register_pytree_node

import fusewire as fw
from fusewire.frontends.torch.calling import ModuleCalling

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Scores:
    best: torch.Tensor
    label: str
    rest: list[torch.Tensor]


class Nested(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Takes and returns what modules of people do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(
        self, x: torch.Tensor, pair: Any = None, *, scale: float = 1.0, extra: Any = None
    ) -> Any:
        x = self.layer(x) * scale
        if pair is not None:
            x = x + pair.left - pair.right
        if extra is None:
            return x
        x = x + extra["a"][0]
        return {"x": x, "scores": Scores(x * 2, "two", [x + 1]), "none": None, "rows": x.shape[0]}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.allclose(left, right, rtol=1e-5, atol=1e-6) and left.dtype is right.dtype
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[x], right[x]) for x in left)
    if isinstance(left, tuple | list):
        return type(left) is type(right) and all(map(same, left, right))
    if isinstance(left, Scores):
        return same(vars(left), vars(right))
    return bool(left == right)


def compiled(module: nn.Module, **options: Any) -> Any:
    return fw.compile(module, **{"backend": "reference", **options})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((torch.ones(2, 3),), {}),
        ((torch.ones(2, 3),), {"scale": 2.0}),
        ((), {"x": torch.ones(2, 3), "scale": 0.5}),
        ((torch.ones(2, 3), Pair(torch.ones(3), torch.full((3,), 2.0))), {}),
        ((torch.ones(2, 3),), {"extra": {"a": [torch.ones(3)], "b": "text"}}),
    ],
    ids=["tensor", "plain value", "keywords", "named tuple", "nested"],
)
def test_calls_keep_their_structure(arguments: Any, named: Any) -> None:
    module = Nested().eval()
    program = compiled(module)
    for _ in range(2):
        assert same(module(*arguments, **named), program(*arguments, **named))
    assert program.run(*arguments, **named).metadata["backend"] == "reference"


def test_a_plain_value_is_part_of_the_program() -> None:
    module = Nested().eval()
    program = compiled(module)
    x = torch.ones(2, 3)
    for scale in (1.0, 2.0, 1.0):
        assert same(module(x, scale=scale), program(x, scale=scale))


def test_numbers_in_a_result_follow_the_shapes() -> None:
    program = compiled(Nested().eval())
    for rows in (2, 5, 7, 2):
        assert program(torch.ones(rows, 3), extra={"a": [torch.ones(3)]})["rows"] == rows


class Output(OrderedDict[str, Any]):
    """An output class as transformers has them: a dict that PyTorch is told how to take apart."""


register_pytree_node(
    Output,
    lambda x: (list(x.values()), list(x)),
    lambda values, names: Output(zip(names, values, strict=True)),
)


def test_output_classes_of_other_packages_come_back() -> None:
    class Encoder(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, inputs: torch.Tensor) -> Output:
            return Output(last=inputs * 2, states=(inputs + 1,), attentions=None)

    output = compiled(Encoder().eval())(inputs=torch.ones(2))
    assert type(output) is Output
    assert output["last"].tolist() == [2.0, 2.0]
    assert output["attentions"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_cross_without_a_copy(dtype: torch.dtype) -> None:
    class Copy(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

    x = torch.ones(4, 5).to(dtype)
    form = ModuleCalling(Copy().eval()).form((x,), {})
    (array,) = form.arrays((x,), {})
    assert array.__array_interface__["data"][0] == x.data_ptr()
    result = form.restorer((x,), {})([array], (x,), {})
    assert result.data_ptr() == x.data_ptr()
    assert result.dtype is dtype
    assert result.shape == x.shape


def test_constants_are_the_memory_of_parameters() -> None:
    module = nn.Linear(64, 64).eval()
    program = compiled(module)
    program(torch.ones(2, 64))
    inner = next(iter(program._state.programs.values()))
    arrays = [value.constant.array for value in inner.graph.constants]
    pointers = {array.__array_interface__["data"][0] for array in arrays}
    assert module.weight.data_ptr() in pointers


def test_bfloat16_and_strides() -> None:
    module = nn.Linear(8, 8).to(torch.bfloat16).eval()
    x = torch.randn(8, 4).to(torch.bfloat16).t()
    assert not x.is_contiguous()
    result = compiled(module)(x)
    assert result.dtype is torch.bfloat16
    assert torch.allclose(result.float(), module(x).float(), atol=0.05)


def test_results_require_no_gradient() -> None:
    module, x = nn.Linear(3, 3).eval(), torch.ones(2, 3)
    for program in (compiled(module), fw.compile(module)):
        with program:
            assert not program(x).requires_grad
    assert torch.is_grad_enabled()


def test_a_module_that_computes_gradients_answers_itself() -> None:
    class Force(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad((x**2).sum(), x)[0]

    with fw.compile(Force().eval()) as program:
        assert program(torch.ones(2)).tolist() == [2.0, 2.0]
        assert program(torch.ones(2)).tolist() == [2.0, 2.0]


def test_results_are_memory_of_their_own() -> None:
    module = nn.Linear(3, 3).eval()
    program, x = compiled(module), torch.ones(2, 3)
    first = program(x)
    kept = first.clone()
    program(x + 1)
    assert torch.equal(first, kept)
    first.zero_()
    assert same(program(x), kept)


def test_a_second_shape_opens_the_size() -> None:
    module = nn.Linear(3, 3).eval()
    program = compiled(module)
    for rows in (2, 3, 5, 6):
        x = torch.randn(rows, 3)
        assert same(module(x), program(x))
    assert str(program.inputs[0]) == "input0: float32[n, 3]"


def test_specs_as_example_open_sizes() -> None:
    module = nn.Linear(3, 3).eval()
    program = compiled_example(module, fw.Spec(("batch", 3)))
    assert program.inputs[0].shape == ("batch", 3)
    for rows in (2, 4):
        x = torch.randn(rows, 3)
        assert same(module(x), program(x))


def compiled_example(module: nn.Module, *example: Any) -> Any:
    return fw.compile(module, *example, backend="reference")


def test_an_example_reads_at_once() -> None:
    program = compiled_example(nn.Linear(3, 3).eval(), torch.ones(2, 3))
    assert program.graph.inputs[0].type.shape == (2, 3)
    assert program.plan is not None
    assert "reference" in repr(program)
    assert program.why().backend == "reference"
    assert program.outputs[0].shape == (2, 3)
    assert program.signatures == ["float32[2, 3]"]
    assert "float32" in str(program)
    assert "float32" in program._repr_html_()


def test_numpy_arrays_are_not_tensors() -> None:
    """The module decides what it takes, and says so."""
    with fw.compile(nn.Linear(3, 3).eval()) as program, pytest.raises(TypeError):
        program(np.ones((2, 3), np.float32))


def test_exported_programs_take_tensors() -> None:
    module, x = Nested().eval(), torch.randn(4, 3)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: batch},), strict=False)
    program = fw.compile(exported, backend="reference")
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3)
        assert same(module(x), program(x))
        assert program.run(x).metadata["backend"] == "reference"
    assert len(program.signatures) <= 2
