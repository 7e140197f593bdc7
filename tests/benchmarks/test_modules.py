"""The collection of PyTorch modules: enough of them, the same in every process, runnable."""

import pytest
import torch

from benchmarks.modules import collection
from benchmarks.modules.case import ModuleCase

CASES = collection()
SMALL = [case for case in CASES.values() if case.is_small]


def test_there_are_sixty_and_the_named_networks_are_among_them() -> None:
    named = {"resnet18", "mobilenet_v2", "unet", "vit", "bert", "gpt", "t5", "whisper_encoder"}
    named |= {"lstm_tagger", "graph_net", "mixture_of_experts", "diffusion_unet"}
    assert len(CASES) >= 60
    assert named <= {name for name, case in CASES.items() if case.is_network}


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_case_builds_the_same_module_twice(case: ModuleCase) -> None:
    first, second = case.build(), case.build()
    tensors = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in tensors)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_case_runs_at_every_size(case: ModuleCase) -> None:
    module = case.build()
    with torch.no_grad():
        for size in case.sizes:
            args, kwargs = case.example(size)
            assert module(*args, **kwargs) is not None
