"""Tensors go from engine to engine uncopied wherever the two allow it."""

import numpy as np
import pytest

from benchmarks.handover import DTYPES, Side, handed

SIZE = 256 << 10
HOSTS = ("reference", "xla", "onnxruntime", "openvino")
# NumPy's own memory is aligned to 16 bytes, and XLA takes what is aligned to 64.
COPIED = {("reference", "xla")}


@pytest.mark.parametrize("name", DTYPES)
def test_what_lies_on_the_host_is_handed_over_as_it_is(name: str) -> None:
    sides = {engine: Side(engine, DTYPES[name], SIZE) for engine in HOSTS}
    copied = {
        (source, target)
        for source in HOSTS
        for target in HOSTS
        if handed(sides[source], sides[target], 1)["copied"]
    }
    assert copied <= COPIED


@pytest.mark.parametrize("name", DTYPES)
def test_what_lies_on_a_device_stays_there(name: str) -> None:
    side = Side("webgpu", DTYPES[name], SIZE)
    assert handed(side, side, 1)["copied"] == 0


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_handed_over_is_the_same(name: str) -> None:
    of = DTYPES[name]
    sides = {engine: Side(engine, of, SIZE) for engine in (*HOSTS, "webgpu")}
    (expected,) = (np.asarray(x) for x in sides["reference"].outputs[:1])
    again = ~expected if of is np.bool_ else expected + expected
    for source in sides.values():
        for target in sides.values():
            found = target.run(source.outputs[0])
            np.testing.assert_array_equal(found, again)
