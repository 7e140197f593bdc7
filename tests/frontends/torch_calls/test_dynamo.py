"""torch.compile(model, backend="fusewire"): right, without more recompiles than PyTorch's own."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import fusewire.dynamo
from fusewire.dynamo import GraphPrograms


class Net(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> dict[str, Any]:
        y = self.norm(self.first(x)) + self.shift * x.shape[0]
        return {"y": y if extra is None else y + extra, "rows": x.shape[0]}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[GraphPrograms]:
    """Collect what the backend made."""
    made: list[GraphPrograms] = []
    compile_graph = fusewire.dynamo.compile_graph

    def noted(graph: Any, example: Any, **named: Any) -> Any:
        made.append(compile_graph(graph, example, **named))
        return made[-1]

    monkeypatch.setattr(fusewire.dynamo, "compile_graph", noted)
    return made


def compiled(model: Any, backend: str = "reference", **options: Any) -> Any:
    given = {"backend": backend, **options.pop("options", {})}
    return torch.compile(model, backend=fusewire.dynamo.compile_graph, options=given, **options)


def on_engines(graphs: list[GraphPrograms], *tensors: torch.Tensor) -> bool:
    """Tell whether engines answer such calls of the latest graph."""
    programs = graphs[-1]._programs.values()
    return bool(programs) and all(
        program.run(*tensors).metadata["backend"] == "reference" for program in programs
    )


def test_the_backend_is_found_by_its_name() -> None:
    assert "fusewire" in torch.compiler.list_backends()
    model, x = Net().eval(), torch.randn(3, 6)
    fast = torch.compile(model, backend="fusewire", options={"level": 0, "backend": "reference"})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_sizes_do_not_recompile(graphs: list[GraphPrograms]) -> None:
    model, x = Net().eval(), torch.empty(0)
    fast = compiled(model)
    with torch.no_grad():
        for rows in (3, 5, 6, 7, 5, 3):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(fast(x), model(x))
    # Dynamo opens the size at the second one.
    assert counters["stats"]["unique_graphs"] == len(graphs) == 2
    assert on_engines(graphs, x)


def test_a_second_call_compiles_nothing(graphs: list[GraphPrograms]) -> None:
    model, x = Net().eval(), torch.randn(3, 6)
    fast = compiled(model, fullgraph=True)
    with torch.inference_mode():
        for _ in range(3):
            torch.testing.assert_close(fast(x, x), model(x, x))
    assert len(graphs) == counters["stats"]["unique_graphs"] == 1
    assert len(graphs[0]._programs) == 1


def test_gradients_run_on_autograd(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Net().eval(), torch.randn(3, 6)
    fast = compiled(model)
    with caplog.at_level(logging.INFO, "fusewire"):
        for _ in range(2):
            fast(x)["y"].sum().backward()
    assert model.first.weight.grad is not None
    assert sum("needs gradients" in record.message for record in caplog.records) == 1


def test_training_steps_are_pytorchs() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(8, 6)
    other = Net()
    other.load_state_dict(model.state_dict())
    fast = compiled(model)
    for net, call in ((model, fast), (other, other)):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(x)["y"].square().sum().backward()
            optimizer.step()
    for left, right in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right)


def test_weights_that_change_are_noticed() -> None:
    model, x = Net().eval(), torch.randn(3, 6)
    fast = compiled(model)
    with torch.no_grad():
        fast(x)
        model.first.weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x))
        model.first.weight = nn.Parameter(torch.randn(6, 6))
        torch.testing.assert_close(fast(x), model(x))


def test_layers_that_share_a_graph_have_their_own_weights() -> None:
    layers = [nn.Linear(4, 4).eval() for _ in range(3)]
    fast = [compiled(layer) for layer in layers]
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(2):
            for layer, call in zip(layers, fast, strict=True):
                torch.testing.assert_close(call(x), layer(x))


def test_graph_breaks_and_hooks() -> None:
    class Broken(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            torch._dynamo.graph_break()
            return torch.relu(x) + 1

    model, x = Broken().eval(), torch.randn(2, 4)
    model.layer.register_forward_hook(lambda module, args, output: output * 2)
    fast = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert counters["stats"]["unique_graphs"] == 2


def test_autocast_is_pytorchs() -> None:
    model, x = nn.Linear(8, 8).eval(), torch.randn(2, 8)
    fast = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert fast(x).dtype is torch.bfloat16
        torch.testing.assert_close(fast(x), model(x))


def test_writes_to_arguments_arrive() -> None:
    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1] = x
        return cache.sum(0)

    fast = compiled(step)
    with torch.no_grad():
        for value in (1.0, 2.0, 3.0):
            left, right = torch.zeros(3, 4), torch.zeros(3, 4)
            x = torch.full((4,), value)
            torch.testing.assert_close(fast(left, x), step(right, x))
            torch.testing.assert_close(left, right)


def test_options_that_do_not_exist_are_refused() -> None:
    fast = compiled(lambda x: x + 1, options={"backnd": "xla"})
    with pytest.raises(Exception, match="Unknown option: backnd"):
        fast(torch.ones(2))


def test_modes() -> None:
    x = torch.ones(2)
    backend = fusewire.dynamo.compile_graph
    assert torch.compile(lambda x: x + 1, backend=backend, mode="default")(x).tolist() == [2, 2]
    fast = torch.compile(lambda x: x + 2, backend=backend, mode="reduce-overhead")
    with pytest.raises(Exception, match="CUDA graphs"):
        fast(x)
