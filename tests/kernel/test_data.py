"""Kernels as data: what is written is read back, and nothing else is read."""

import contextlib
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from fusewire.errors import EngineGarbage, GraphError, RefusedError
from fusewire.fusion.grouping import fuse
from fusewire.kernel.data import kernel_from_data, kernel_to_data
from fusewire.kernel.form import Kernel
from fusewire.kernel.lower.region import lower_fusion
from fusewire.kernel.lower.table import refusal
from fusewire.ops.table import all_ops
from fusewire.testing.conformance import first_cases
from tests.kernel.regions import random_region


# Compared by repr: a NaN is equal to none.
def through_json(kernel: Kernel) -> Kernel:
    return kernel_from_data(json.loads(json.dumps(kernel_to_data(kernel))))


@cache
def kernels_of_ops() -> list[Kernel]:
    """Lower the first sample of every op that has kernels."""
    kernels: list[Kernel] = []
    for op in all_ops().values():
        case = first_cases(op)[0]
        if not case.is_numeric:
            continue
        with contextlib.suppress(RefusedError, GraphError):
            kernels += lower_fusion(fuse(case.make()[0], refusal)).kernels
    return kernels


def test_kernels_of_every_op_come_back_as_they_were() -> None:
    assert len(kernels_of_ops()) > 150
    for kernel in kernels_of_ops():
        assert repr(through_json(kernel)) == repr(kernel)


@pytest.mark.parametrize("seed", range(20))
def test_kernels_of_random_regions_come_back_as_they_were(seed: int) -> None:
    for kernel in random_region(seed).lowered.kernels:
        assert repr(through_json(kernel)) == repr(kernel)


def places(data: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the path of every list, string and number in data."""
    yield path
    if isinstance(data, list):
        for at, item in enumerate(data):
            yield from places(item, (*path, at))


def with_item(data: Any, path: tuple[int, ...], item: Any) -> Any:
    if not path:
        return item
    first, *rest = path
    return [with_item(x, tuple(rest), item) if at == first else x for at, x in enumerate(data)]


@pytest.mark.parametrize(
    "text",
    ["x): pass\nimport os", "a b", "a.b", "", "a\n", "é", "a" * 300, "1a", "__import__('os')"],
)
def test_text_that_is_no_word_is_refused_in_every_place(text: str) -> None:
    data = kernel_to_data(max(kernels_of_ops(), key=lambda kernel: len(kernel.body)))
    for path in places(data):
        with pytest.raises(EngineGarbage):
            kernel_from_data(with_item(data, path, text))


@pytest.mark.parametrize("item", [None, {}, [], ["Kernel"], -1.5, "Kernel", [["Axis", "a", 1]], 2])
def test_parts_of_another_type_are_refused_or_of_the_form(item: Any) -> None:
    data = kernel_to_data(kernels_of_ops()[0])
    for path in places(data):
        try:
            found = kernel_from_data(with_item(data, path, item))
        except EngineGarbage:
            continue
        # What is read prints as data again, and is what was given.
        assert kernel_to_data(found) == with_item(data, path, item)
