"""What cannot be a graph ends in a sentence that names the op and the line."""

import threading
from typing import Any

import pytest
import torch
from torch import nn

from fusewire.errors import TraceError
from tests.frontends.torch.modules import Lambda, check, converted, draw


class Counting(nn.Module):  # type: ignore[misc] # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        return x + self.calls


class Branching(nn.Module):  # type: ignore[misc] # torch is not typed here
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x


class Drawing(nn.Module):  # type: ignore[misc] # torch is not typed here
    def forward(self, x: Any) -> Any:
        return x + torch.rand(3, 4)


class Rare(nn.Module):  # type: ignore[misc] # torch is not typed here
    def forward(self, x: Any) -> Any:
        return torch.special.bessel_j0(x)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Counting(), "writes to its buffer 'calls'"),
        (Branching(), r"test_refusals\.py:\d+: `return x \+ 1 if x\.sum\(\) > 0 .*torch\.cond"),
        (Drawing(), r"test_refusals\.py:\d+: `return x \+ torch\.rand.*aten\.rand\.default draws"),
        (Rare(), r"test_refusals\.py:\d+: `return torch\.special.*no conversion of .*bessel_j0"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), r"In Dropout '1':.*Call eval\(\)"),
        (Lambda(lambda x: None), "no tensor"),
    ],
    ids=["buffer", "branch", "random", "unknown", "training", "nothing"],
)
def test_refusal_names_what_and_where(module: Any, said: str) -> None:
    with pytest.raises(TraceError, match=f"(?s){said}"):
        converted(module, draw(3, 4))


def test_failed_export_prints_nothing(capfd: Any) -> None:
    with pytest.raises(TraceError):
        converted(Branching(), draw(3, 4))
    assert capfd.readouterr() == ("", "")


def test_exports_in_several_threads_do_not_disturb_each_other() -> None:
    problems: list[BaseException] = []

    def run(width: int) -> None:
        try:
            check(nn.Linear(width, 3).eval(), draw(2, width))
        except BaseException as error:  # noqa: BLE001  # shown below
            problems.append(error)

    threads = [threading.Thread(target=run, args=(width,)) for width in range(3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
