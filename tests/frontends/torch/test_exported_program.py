"""Exported programs keep their open sizes and their results."""

from typing import Any

import pytest
import torch
from torch import nn

import fusewire as fw
from fusewire.contract.frontend import Limits
from fusewire.errors import CheckError, TraceError
from fusewire.frontends.torch.frontend import ExportedProgramFrontend
from tests.frontends.torch.modules import Lambda, draw


class Named(nn.Module):  # type: ignore[misc] # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Any, y: Any) -> Any:
        return {"sum": self.linear(x) + y, "rest": (x.relu(), 5)}


@pytest.fixture(scope="module")
def program() -> Any:
    batch = torch.export.Dim("batch", min=2, max=64)
    example = torch.ones(5, 4), torch.ones(5, 3)
    return torch.export.export(Named().eval(), example, dynamic_shapes=({0: batch}, {0: batch}))


def test_inputs_are_declared_with_open_sizes(program: Any) -> None:
    x, y = ExportedProgramFrontend().open(program, Limits()).inputs.values()
    assert str(x) == str(y).replace("3]", "4]")
    assert not x.is_static  # type: ignore[union-attr] # both are tensors


def test_program_runs_at_every_size_and_keeps_the_results(program: Any) -> None:
    compiled = fw.compile(program, backend="reference")
    for batch in (3, 7):
        x, y = map(torch.from_numpy, (draw(batch, 4), draw(batch, 3, seed=1)))
        found = compiled(x, y)
        with torch.no_grad():
            expected = program.module()(x, y)
        torch.testing.assert_close(found["sum"], expected["sum"])
        torch.testing.assert_close(found["rest"][0], expected["rest"][0])
        assert found["rest"][1] == 5


def test_sizes_of_an_example_are_bound(program: Any) -> None:
    example = draw(3, 4), draw(3, 3)
    graph = ExportedProgramFrontend().open(program, Limits()).convert(example).graph
    assert [str(value.type) for value in graph.inputs] == ["float32[3, 4]", "float32[3, 3]"]


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_sizes_outside_the_range_of_a_dim_are_refused(backend: str) -> None:
    module = Lambda(lambda x: x * 2)
    rows = torch.export.Dim("rows", min=3, max=8)
    exported = torch.export.export(module, (torch.ones(5, 4),), dynamic_shapes=(({0: rows},),))
    compiled = fw.compile(exported, backend=backend)
    for size in (5, 6, 3, 8):
        assert compiled(torch.ones(size, 4)).shape == (size, 4)
        for wrong in (2, 9):
            # What PyTorch says of it is raised, because of ours.
            with pytest.raises(AssertionError, match="Guard failed") as raised:
                compiled(torch.ones(wrong, 4))
            ours = str(raised.value.__cause__ or raised.value.__context__)
            assert "at least 3 and at most 8 on axis 0 of" in ours
            assert f"found {wrong}" in ours


def test_size_of_an_example_outside_its_range_is_refused(program: Any) -> None:
    document = ExportedProgramFrontend().open(program, Limits())
    with pytest.raises(TraceError, match=r"at most 64 on axis 0 of x .*, found 65"):
        document.convert((draw(65, 4), draw(65, 3)))


class Asserting(nn.Module):  # type: ignore[misc] # torch is not typed here
    def forward(self, x: Any) -> Any:
        torch._assert_async((x > 0).all(), "x must be positive")
        y = x * 2
        torch._assert_async((y < 100).all())
        return y, y + 1


class AssertingInBranch(nn.Module):  # type: ignore[misc] # torch is not typed here
    def forward(self, x: Any) -> Any:
        def small(x: Any) -> Any:
            torch._assert_async((x > 0).all(), "x must be positive")
            return x * 2

        return torch.cond(x.sum() < 100, small, lambda x: x * 3, (x,))


@pytest.mark.parametrize("backend", ["reference", "onnxruntime", "torch"])
@pytest.mark.parametrize("module", [Asserting, AssertingInBranch])
def test_assertions_of_the_module_are_kept(module: Any, backend: str) -> None:
    right, wrong = torch.ones(3), torch.tensor([1.0, -1.0, 1.0])
    exported = torch.export.export(module().eval(), (right,))
    compiled = fw.compile(exported, backend=backend, fallback="allow")
    for _ in range(2):
        torch.testing.assert_close(compiled(right), module()(right))
        with pytest.raises(CheckError, match=r"x must be positive \(test_exported_program.py:"):
            compiled(wrong)


def test_assertion_without_a_message_names_its_line() -> None:
    exported = torch.export.export(Asserting().eval(), (torch.ones(3),))
    compiled = fw.compile(exported, backend="reference")
    # The program itself answers the first call.
    compiled(torch.ones(3))
    with pytest.raises(CheckError, match=r"assertion of the module .* \(test_exported_program"):
        compiled(torch.full((3,), 60.0))
