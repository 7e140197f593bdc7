"""A change of a module is noticed at the next call, and so is what engines must not answer."""

import copy
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusewire as fw
from fusewire.errors import GraphError, TraceError
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.ir.text import constants_of
from fusewire.program import module_program


class Net(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4, 4, bias=False)
        self.register_buffer("shift", torch.zeros(4))
        self.plain = torch.ones(4)
        self.scale = 1.0
        self.factors = [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.drop(self.first(x))) * self.scale * self.factors[0]
        return y * self.plain + self.shift


def _in_place(net: Net) -> None:
    with torch.no_grad():
        net.first.weight.mul_(2)


def _data(net: Net) -> None:
    net.last.weight.data = net.last.weight.data * 3


def _parameter(net: Net) -> None:
    net.first.bias = nn.Parameter(torch.full((4,), 5.0))


def _part(net: Net) -> None:
    net.last = nn.Linear(4, 4, bias=False)


def _new_bias(net: Net) -> None:
    net.last.bias = nn.Parameter(torch.full((4,), 5.0))


def _no_bias(net: Net) -> None:
    net.first.bias = None


def _loaded(net: Net) -> None:
    net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()})


def _assigned(net: Net) -> None:
    net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()}, assign=True)


def _buffer(net: Net) -> None:
    net.shift += 1


def _attribute(net: Net) -> None:
    net.plain.mul_(2)


def _new_attribute(net: Net) -> None:
    net.plain = torch.full((4,), 3.0)


def _fused_step(net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, fused=True)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def _data_in_place(net: Net) -> None:
    for parameter in net.parameters():
        parameter.data.mul_(1.5)


def _data_turned(net: Net) -> None:
    for part in (net.first, net.last):
        part.weight.data = part.weight.data.t()


def _number(net: Net) -> None:
    net.scale = 2.0


def _list(net: Net) -> None:
    net.factors[0] = 3.0


def _hook(net: Net) -> None:
    net.first.register_forward_hook(lambda module, args, result: result * 2)


def _forward(net: Net) -> None:
    net.last.forward = lambda x: x * 7


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(torch.allclose(left, right, rtol=1e-4, atol=1e-5))


CHANGES = [
    _in_place,
    _data,
    _parameter,
    _part,
    _new_bias,
    _no_bias,
    _loaded,
    _assigned,
    _buffer,
    _attribute,
    _new_attribute,
    _fused_step,
    _data_in_place,
    _data_turned,
    _number,
    _list,
    _hook,
    _forward,
]


def served(net: nn.Module, x: torch.Tensor) -> Any:
    program = fw.compile(net, backend="reference")
    assert close(program(x), net(x))
    assert program.run(x).metadata["backend"] == "reference"
    return program


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_change_is_noticed_at_the_next_call(change: Callable[[Net], None]) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program:
        before = net(x)
        change(net)
        assert not close(net(x), before)
        assert close(program(x), net(x))


def test_engines_get_weights_that_stay() -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program:
        _in_place(net)
        for _ in range(6):
            assert close(program(x), net(x))
        assert program.run(x).metadata["backend"] == "reference"


def test_weights_that_keep_changing_stay_on_the_module(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program, caplog.at_level(logging.INFO, "fusewire"):
        reads: list[Any] = []
        monkeypatch.setattr(program, "_make", lambda *given: reads.append(given))
        for _ in range(20):
            _in_place(net)
            assert close(program(x), net(x))
        assert not reads
    said = [record for record in caplog.records if "has changed" in record.message]
    assert len(said) == 1


def test_training_is_left_to_the_module(caplog: pytest.LogCaptureFixture) -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program, caplog.at_level(logging.INFO, "fusewire"):
        net.train()
        assert program(x).requires_grad
        program(x)
        assert sum("training mode" in record.message for record in caplog.records) == 1
        net.eval()
        net.drop.train()
        assert program.run(x).metadata["backend"] == "function"
        net.eval()
        # The weights are the same, so what was read still serves.
        assert program.run(x).metadata["backend"] == "reference"


def test_gradients_are_left_to_the_module() -> None:
    net, x = Net().eval(), torch.randn(2, 4, requires_grad=True)
    with served(net, x.detach()) as program:
        program(x).sum().backward()
        assert x.grad is not None
        with torch.no_grad():
            assert program.run(x).metadata["backend"] == "reference"


def test_modes_and_kinds_of_tensors_are_left_to_the_module() -> None:
    class Own(torch.Tensor):  # type: ignore[misc]  # torch is not typed here
        pass

    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program:
        assert isinstance(program(x.as_subclass(Own)), Own)
        with torch.autocast("cpu", torch.bfloat16):
            assert program(x).dtype is net(x).dtype
        assert program(x.to_sparse().to_dense()).shape == (2, 4)


def test_a_program_can_be_exported_again() -> None:
    class Outer(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self, program: Any) -> None:
            super().__init__()
            self.program = [program]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.program[0](x) + 1

    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program:
        exported = torch.export.export(Outer(program).eval(), (x,), strict=False)
        assert close(exported.module()(x), net(x) + 1)


class Branches(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def test_what_cannot_be_read_answers_itself(caplog: pytest.LogCaptureFixture) -> None:
    with fw.compile(Branches().eval()) as program, caplog.at_level(logging.INFO, "fusewire"):
        assert program(torch.ones(2)).tolist() == [2.0, 2.0]
        assert program.wait(60)
        assert program(torch.full((2,), -1.0)).tolist() == [-2.0, -2.0]
        assert "answers itself" in repr(program)
        with pytest.raises(GraphError, match=r"torch\.export"):
            program.why()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1


def test_a_named_engine_raises_what_cannot_be_read() -> None:
    program = fw.compile(Branches().eval(), backend="reference")
    with pytest.raises(TraceError):
        program(torch.ones(2))


def test_what_the_module_refuses_has_the_modules_own_error() -> None:
    program = fw.compile(nn.Linear(4, 4).eval(), backend="reference")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        program(torch.ones(2, 5))


def test_the_first_answer_is_the_modules_own() -> None:
    class Noted(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.threads: list[threading.Thread] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.threads.append(threading.current_thread())
            return x * 2

    module = Noted().eval()
    with fw.compile(module) as program:
        assert program.state == "serving-first"
        assert program(torch.ones(2)).tolist() == [2.0, 2.0]
        assert module.threads == [threading.current_thread()]


def test_copies_and_pickles_are_refused() -> None:
    program = fw.compile(Net().eval())
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="Compile the module in each process"):
            attempt(program)


def test_a_closed_program_is_not_called() -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program:
        pass
    with pytest.raises(GraphError, match="closed"):
        program(x)


def test_the_module_answers_in_a_forked_process() -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program:
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            os._exit(0 if close(program(x), net(x)) else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_closing_does_not_wait_for_an_export() -> None:
    class Slow(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_exporting():
                time.sleep(20)
            return x * 2

    with fw.compile(Slow().eval()) as program:
        program(torch.ones(2))
        time.sleep(1)
        start = time.monotonic()
    assert time.monotonic() - start < 5


def _read(net: nn.Module, x: torch.Tensor) -> Any:
    return fw.trace(FlatCall(lambda x: [net(x)], net, ("x",)), x.numpy())


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_weights_written_to_while_they_are_compiled_are_not_recorded(engine: str) -> None:
    net, x = nn.Linear(64, 64).eval(), torch.randn(8, 64)
    before = net.weight.detach().clone()
    graph = _read(net, x)
    constants_of(graph)
    with torch.no_grad():
        net.weight.neg_()
    fw.compile(graph, backend=engine)(x.numpy())
    with torch.no_grad():
        net.weight.copy_(before)
    found = torch.from_numpy(fw.compile(_read(net, x), backend=engine)(x.numpy()))
    torch.testing.assert_close(found, net(x).detach())


def test_weights_written_to_are_not_the_fault_of_an_engine() -> None:
    net, x = nn.Linear(64, 64).eval(), torch.randn(8, 64)
    graph = _read(net, x)
    constants_of(graph)
    with torch.no_grad():
        net.weight.neg_()
    with pytest.raises(GraphError, match=r"were written to while it was compiled"):
        fw.compile(graph, backend="xla")(x.numpy())


def test_hooks_are_called() -> None:
    net, x, seen = Net().eval(), torch.randn(2, 4), list[torch.Tensor]()
    net.last.register_forward_hook(lambda module, args, result: seen.append(result))
    program = fw.compile(net, backend="reference")
    for _ in range(3):
        program(x)
    assert len(seen) == 3


@pytest.mark.filterwarnings("ignore")
def test_tangents_are_left_to_the_module() -> None:
    net, x = Net().eval(), torch.randn(2, 4)
    with served(net, x) as program:
        found = torch.func.jvp(program, (x,), (torch.ones(2, 4),))
        expected = torch.func.jvp(net, (x,), (torch.ones(2, 4),))
        assert close(found[1], expected[1])
        assert close(program(x), net(x))


class Kept(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Returns what it was given, and what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.add_(1)
        return x, y, self.weight, x + self.weight


def test_what_was_there_before_is_returned_itself() -> None:
    net, x, y = Kept().eval(), torch.ones(4), torch.zeros(4)
    program = fw.compile(net, backend="reference")
    for count in (1, 2, 3):
        version = y._version
        first, second, third, fourth = program(x, y)
        assert first is x
        assert second is y
        assert third is net.weight
        assert fourth.tolist() == [2.0] * 4
        assert y.tolist() == [float(count)] * 4
        assert y._version > version


class Viewed(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)


def test_a_view_of_an_argument_stays_one() -> None:
    x = torch.zeros(2, 2)
    program = fw.compile(Viewed().eval(), backend="reference")
    for _ in range(3):
        program(x).add_(1)
    assert x.tolist() == [[3.0, 3.0], [3.0, 3.0]]


class Writing(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b


def test_arguments_that_overlap_are_left_to_the_module() -> None:
    program = fw.compile(Writing().eval(), backend="reference")
    assert program(torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]
    for _ in range(2):
        x = torch.ones(2)
        assert program(x, x).tolist() == [4.0, 4.0]
        both = torch.ones(3)
        assert program(both[:2], both[1:]).tolist() == Writing()(*_halves()).tolist()


def test_a_view_of_a_buffer_that_is_written_to_is_left_to_the_module() -> None:
    class Own(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.ones(8))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            a.add_(1)
            return a * self.n[:4]

    net = Own().eval()
    program = fw.compile(net, backend="reference")
    assert program(torch.ones(4)).tolist() == [2.0] * 4
    assert program(net.n[:4]).tolist() == [4.0] * 4


def _halves() -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.ones(3)
    return both[:2], both[1:]


def _scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(4, 4).eval())


def _traced_by_dynamo() -> Any:
    return torch.compile(nn.Linear(4, 4).eval(), backend="eager")


def _lazy() -> nn.Module:
    return nn.LazyLinear(4).eval()


def _sparse() -> nn.Module:
    net = nn.Linear(4, 4, bias=False).eval()
    net.weight = nn.Parameter(torch.eye(4).to_sparse_csr())
    return net


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [_scripted, _traced_by_dynamo, _lazy, _sparse])
def test_modules_like_no_others_answer_themselves(make: Callable[[], Any]) -> None:
    net, x = make(), torch.randn(2, 4)
    with fw.compile(net, budget_seconds=1.0) as program:
        found = program(x)
        assert close(found, net(x))
        assert program.wait(60)
        assert close(program(x), net(x))
        assert program.wait(60)


def test_a_call_that_waits_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    of = module_program._Request.of

    def counted(call: Any) -> Any:
        requests.append(call)
        return of(call)

    monkeypatch.setattr(module_program._Request, "of", counted)
    net, x = Net().eval(), torch.randn(2, 4)
    with fw.compile(net) as program:
        for _ in range(20):
            program(x)
        assert len(requests) <= 2
