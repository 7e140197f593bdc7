"""torch.compile(model, backend="fusewire"): right, without more recompiles than PyTorch's own."""

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

import fusewire as fw
import fusewire.dynamo
from fusewire.dynamo import GraphPrograms
from fusewire.errors import OptionsError


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
    programs = graphs[-1].programs
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
    assert len(graphs[0].programs) == 1


def test_layers_of_pytorch_run_on_engines(graphs: list[GraphPrograms]) -> None:
    """Dynamo traces the fused ops that these layers call where no gradient is needed."""
    model, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    fast = compiled(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        assert on_engines(graphs, x)


def test_gradients_run_on_autograd(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Net().eval(), torch.randn(3, 6)
    fast = compiled(model)
    with caplog.at_level(logging.INFO, "fusewire"):
        for _ in range(2):
            fast(x)["y"].sum().backward()
    assert model.first.weight.grad is not None
    assert sum("needs gradients" in record.message for record in caplog.records) == 1


def test_training_step_that_make_fx_traced_runs_on_an_engine() -> None:
    def step(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradient, loss = torch.func.grad_and_value(lambda w: (x @ w).tanh().sub(y).square().mean())(
            w
        )
        return w - 0.1 * gradient, loss

    torch.manual_seed(0)
    given = torch.randn(8, 4), torch.randn(16, 8), torch.randn(16, 4)
    traced = make_fx(step)(*given).eval()
    program = fw.compile(traced, backend="onnxruntime", fallback="error", isolate="never")
    with torch.no_grad():
        updated = program(*given)
    torch.testing.assert_close(updated, step(*given))
    assert program.why().counts()["data"].keys() == {"onnxruntime"}


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


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("calls", [1, 2])
def test_steps_of_fused_optimizers_are_noticed(
    layer: int, calls: int, graphs: list[GraphPrograms]
) -> None:
    # It has more parameters than a call compares.
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)]).eval()
    fast, x = compiled(model), torch.randn(3, 4)
    optimizer = torch.optim.Adam(model[layer].parameters(), lr=0.1, fused=True)
    model(x).sum().backward()
    with torch.no_grad():
        for _ in range(calls):
            fast(x)
        assert on_engines(graphs, x)
        optimizer.step()
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


def test_writes_reach_what_shares_their_memory(graphs: list[GraphPrograms]) -> None:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y + model.weight[:3]

    model, other = Weighted(step).eval(), Weighted(step).eval()
    fast, apart = compiled(model), torch.ones(3)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(torch.ones(3), apart), other(torch.ones(3), apart))
        assert on_engines(graphs, torch.ones(3), apart)
        for _ in range(2):
            left, right = torch.ones(4), torch.ones(4)
            torch.testing.assert_close(fast(left[:3], left[1:]), other(right[:3], right[1:]))
            torch.testing.assert_close(left, right)
            left, right = model.weight[1:], other.weight[1:]
            torch.testing.assert_close(fast(left, apart), other(right, apart))
            torch.testing.assert_close(model.weight, other.weight)


class Weighted(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Calls a function with itself; has a parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self, *arguments)


def views_of_a_sum(model: Any, x: torch.Tensor) -> Any:
    y = x + model.weight
    return y, y.view(2, -1), y.t()[:2]


def halves(model: Any, x: torch.Tensor) -> Any:
    return (x * model.weight).chunk(2, dim=1)


def written_and_viewed(model: Any, x: torch.Tensor) -> Any:
    y = x * 2
    top = y[0]
    x.mul_(model.weight)
    top.add_(1)
    return top, y, x.view(x.shape[0] * 4), x.sum()


def overwritten(model: Any, x: torch.Tensor) -> Any:
    return x.add_(1), x.sum() + 1


def written_parameter(model: Any, x: torch.Tensor) -> Any:
    model.weight[:2].mul_(2)
    return x + model.weight, x + 1


SHARING: dict[str, tuple[Callable[..., Any], bool]] = {
    "view of the argument": (lambda model, x: x.view(-1), False),
    "view beside a sum": (lambda model, x: (x.view(-1), x + 1), True),
    "view of the parameter": (lambda model, x: (model.weight[:2], x + model.weight), True),
    "views of a sum": (views_of_a_sum, True),
    "halves": (halves, True),
    "written and viewed": (written_and_viewed, True),
    "overwritten": (overwritten, True),
    "parameter written": (written_parameter, True),
    "transposed": (lambda model, x: ((x.t() + 1).t().view(-1), x.t() + 1), True),
    "written by a function": (lambda model, x: (nn.functional.elu(x, inplace=True), x + 1), False),
}


def after_writes(call: Any, model: Weighted, rows: int) -> list[torch.Tensor]:
    """Call, write to one result after the other, and return all that may have changed."""
    x = torch.arange(4.0 * rows).reshape(rows, 4) - 5
    results = call(x)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    seen = []
    for value, result in enumerate(results):
        result.mul_(value + 2)
        seen += [tensor.detach().clone() for tensor in (x, model.weight, *results)]
    return seen


@pytest.mark.parametrize("name", SHARING)
def test_results_share_the_memory_that_they_should(name: str, graphs: list[GraphPrograms]) -> None:
    function, is_on_engines = SHARING[name]
    model, other = Weighted(function).eval(), Weighted(function).eval()
    fast = compiled(model)
    with torch.no_grad():
        # Dynamo opens the size at the second one.
        for rows in (2, 4, 6, 6):
            left, right = after_writes(fast, model, rows), after_writes(other, other, rows)
            torch.testing.assert_close(left, right)
        assert bool(graphs[-1].programs) is is_on_engines
        model.weight.fill_(1)
        for _ in range(5):
            fast(torch.ones(6, 4))
        if is_on_engines and name != "parameter written":
            assert on_engines(graphs, torch.ones(6, 4))


def test_gradients_that_a_module_turns_on_are_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    def weighted(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return (model.weight * x).sum()

    def guided(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad((model.weight * x * x).sum(), x)[0]

    with torch.no_grad(), caplog.at_level(logging.INFO, "fusewire"):
        fast = compiled(Weighted(weighted).eval())
        assert all(fast(torch.ones(4)).requires_grad for _ in range(3))
        fast = compiled(Weighted(guided).eval())
        for _ in range(3):
            assert fast(torch.ones(4)).tolist() == [0, 2, 4, 6]
    assert any("turns gradients on" in record.message for record in caplog.records)


def test_no_gradients_inside_leave_a_graph_to_engines(graphs: list[GraphPrograms]) -> None:
    def function(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return y + model.weight

    model, x = Weighted(function).eval().requires_grad_(False), torch.ones(2, 4)
    assert compiled(model)(x).tolist() == model(x).tolist()
    assert on_engines(graphs, x)


def test_replaced_parameters_are_let_go(graphs: list[GraphPrograms]) -> None:
    model, x, seen, memory = nn.Linear(4, 4).eval(), torch.ones(2, 4), [], []
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(5):
            model.weight = nn.Parameter(torch.randn(4, 4))
            seen.append(weakref.ref(model.weight))
            torch.testing.assert_close(fast(x), model(x))
            memory.append(weakref.ref(graphs[-1].programs[-1]))
    gc.collect()
    assert [parameter() is not None for parameter in seen] == [False] * 4 + [True]
    assert [program() is not None for program in memory] == [False] * 4 + [True]


def test_parameters_that_get_other_memory_are_followed(graphs: list[GraphPrograms]) -> None:
    model, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    fast = compiled(model)
    with torch.inference_mode():
        fast(x)
        assert on_engines(graphs, x)
    for _ in range(3):
        model.weight.data = torch.randn(4, 4)
        with torch.inference_mode():
            torch.testing.assert_close(fast(x), model(x))
    with torch.no_grad():
        model.weight.mul_(2)
    with torch.inference_mode():
        for _ in range(200):
            torch.testing.assert_close(fast(x), model(x))
        assert on_engines(graphs, x)


def test_sentences_name_the_users_module_and_buffer(caplog: pytest.LogCaptureFixture) -> None:
    class Counter(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x + self.calls

    class Outer(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList([Counter()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner[0](x) * 2

    fast = compiled(Outer().eval())
    with torch.no_grad():
        assert [fast(torch.zeros(1)).item() for _ in range(3)] == [2, 4, 6]
    assert "Outer itself answers" in caplog.text
    assert "its buffer 'inner.0.calls'" in caplog.text


def test_random_numbers_are_pytorchs(caplog: pytest.LogCaptureFixture) -> None:
    fast = compiled(Weighted(lambda model, x: x + torch.rand(4)).eval())
    with torch.no_grad():
        assert len({fast(torch.zeros(4)).sum().item() for _ in range(4)}) == 4
    assert "if only training draws them, call eval()" in caplog.text


def test_options_that_do_not_exist_are_refused() -> None:
    fast = compiled(lambda x: x + 1, options={"backnd": "xla"})
    with pytest.raises(Exception, match="Unknown option: backnd"):
        fast(torch.ones(2))


def test_engines_that_do_not_exist_are_refused() -> None:
    with pytest.raises(Exception, match="has no 'tensorrt'"), torch.no_grad():
        compiled(nn.Linear(2, 2).eval(), backend="tensorrt")(torch.ones(2))


def test_modes() -> None:
    x = torch.ones(2)
    backend = fusewire.dynamo.compile_graph
    assert torch.compile(lambda x: x + 1, backend=backend, mode="default")(x).tolist() == [2, 2]
    fast = torch.compile(lambda x: x + 2, backend=backend, mode="reduce-overhead")
    with pytest.raises(Exception, match="CUDA graphs"):
        fast(x)
    fast = torch.compile(lambda x: x + 3, backend=backend, mode="fast")
    with pytest.raises(Exception, match="mode='fast' is not a mode that Fusewire knows"):
        fast(x)


def test_an_option_that_the_backend_lacks_reaches_the_caller() -> None:
    config = {"backend_config": {"spining": False}, "start": "measured"}
    fast = compiled(Net().eval(), "onnxruntime", options=config)
    with torch.no_grad(), pytest.raises(OptionsError, match="no option spining"):
        fast(torch.randn(3, 6))
