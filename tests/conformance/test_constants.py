"""Constants of every dtype and size on every engine: none is lost on its way."""

from collections import Counter

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.region import first_device
from fusewire.dtypes import ALL
from fusewire.errors import RegistryError
from fusewire.registry import REGISTRY
from fusewire.testing.constants import SIZES, constant_cases, constant_outcomes

# The cases that each engine runs by itself: they may become more.
LEAST = {
    "reference": 710,
    "onnxruntime": 385,
    "openvino": 450,
    "xla": 695,
    "torch": 690,
    "webgpu": 441,
}


def test_every_dtype_is_a_constant_of_every_size() -> None:
    cases = list(constant_cases())
    assert {(case.dtype, case.size) for case in cases} == {(x, size) for x in ALL for size in SIZES}
    assert len(cases) == LEAST["reference"]
    assert {0, 1, 1_000, 100_000} <= set(SIZES)


@pytest.mark.parametrize("name", LEAST)
def test_constants_reach_the_engine(name: str) -> None:
    try:
        backend = REGISTRY.backends.get(name)
        device = first_device(backend)
    except RegistryError as error:
        pytest.skip(str(error))
    outcomes = constant_outcomes(backend, device)
    failed = [f"{case.id}: {x.reason}" for case, x in outcomes.items() if x.status == "failed"]
    assert not failed, "\n".join(failed[:20])
    counts = Counter(outcome.status for outcome in outcomes.values())
    assert len(outcomes) - counts["refused"] >= LEAST[name]


@pytest.mark.parametrize("size", [31, 32, 1000])
def test_mask_is_a_constant_of_any_size(size: int) -> None:
    mask = np.tri(size, dtype=bool)

    def masked(x: np.ndarray) -> np.ndarray:
        return np.where(mask, x, np.float32(-1))

    x = np.ones((size, size), np.float32)
    program = fw.compile(masked, backend="onnxruntime", fallback="error", isolate="never")
    np.testing.assert_array_equal(program(x), masked(x))
