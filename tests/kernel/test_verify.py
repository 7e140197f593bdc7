"""Each invariant of a kernel, broken once."""

from dataclasses import replace

import pytest

from fusewire.dtypes import float32, int32
from fusewire.errors import VerifyError
from fusewire.kernel.form import (
    Bound,
    BufferLoad,
    BufferStore,
    Compute,
    Fold,
    Kernel,
    KernelBuffer,
    Literal,
    Loop,
    Lowered,
    Statement,
)
from fusewire.kernel.index import Axis, Held, at
from fusewire.kernel.verify import verify_kernel, verify_lowered

ROW, K = Axis("row", 4), Axis("k", 6)
X, Y, L = (
    KernelBuffer("x", float32, (4, 6)),
    KernelBuffer("y", float32, (4,)),
    KernelBuffer("l", float32, (6,)),
)
LOAD = BufferLoad("a", float32, "x", (at(ROW), at(K)))
SUM = Fold(("s",), (float32,), "add", (K,), (LOAD,), ("a",))
STORE = BufferStore("y", (at(ROW),), "s")
ZERO = Literal("z", float32, 0.0)
NUMBER = Literal("n", int32, 3)
RIGHT = Kernel("sums", (ROW,), (SUM, STORE), (X,), (Y,))
BELOW = at(ROW) - 1


def _fold(**fields: object) -> Fold:
    return replace(SUM, **fields)  # type: ignore[arg-type]


BROKEN: dict[str, tuple[str, tuple[Statement, ...]]] = {
    "a name that is not known": ("names", (STORE,)),
    "a name given twice": ("names", (SUM, ZERO, ZERO, STORE)),
    "a name of an inner scope": ("names", (SUM, replace(STORE, value="a"))),
    "a dtype that is not the buffer's": ("dtypes", (NUMBER, replace(STORE, value="n"))),
    "an operand of another dtype": (
        "dtypes",
        (ZERO, Compute("c", int32, "add", ("z", "z")), STORE),
    ),
    "a composite as a scalar op": ("ops", (ZERO, Compute("c", float32, "gelu", ("z",)))),
    "an op that is not elementwise": ("ops", (ZERO, Compute("c", float32, "reduce_sum", ("z",)))),
    "an axis out of scope": ("axes", (SUM, replace(STORE, index=(at(K),)))),
    "two axes of one name": ("axes", (_fold(axes=(K, Axis("row", 2))), STORE)),
    "an index beyond the end": (
        "bounds",
        (
            _fold(axes=(Axis("k", 7),), body=(replace(LOAD, index=(at(ROW), at(Axis("k", 7)))),)),
            STORE,
        ),
    ),
    "an index before the start": (
        "bounds",
        (_fold(body=(replace(LOAD, index=(BELOW, at(K))),)), STORE),
    ),
    "a bound that does not help": (
        "bounds",
        (_fold(body=(replace(LOAD, index=(BELOW, at(K)), guard=(Bound(BELOW, -1, 4),)),)), STORE),
    ),
    "too few indices": ("rank", (_fold(body=(replace(LOAD, index=(at(ROW),)),)), STORE)),
    "a buffer that is only written": ("buffers", (BufferLoad("b", float32, "y", (at(ROW),)),)),
    "a fold of two values by one op": ("folds", (_fold(values=("a", "a")), STORE)),
    "points that store to one place": ("races", (SUM, replace(STORE, index=(at(0),)))),
    "a held value that is no integer": ("names", (SUM, replace(STORE, index=(at(Held("s", 4)),)))),
}


def test_a_right_kernel_is_taken() -> None:
    verify_kernel(RIGHT)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_kernel_is_refused(case: str) -> None:
    check, body = BROKEN[case]
    with pytest.raises(VerifyError) as error:
        verify_kernel(replace(RIGHT, body=body))
    assert error.value.check == check


def test_a_bound_makes_an_index_safe() -> None:
    guarded = replace(LOAD, index=(BELOW, at(K)), guard=(Bound(BELOW, 0, 4),))
    verify_kernel(replace(RIGHT, body=(_fold(body=(guarded,)), STORE)))


def test_a_loop_in_order_may_store_to_one_place() -> None:
    loop = Loop((K,), (LOAD, BufferStore("y", (at(ROW),), "a")), ordered=True)
    verify_kernel(replace(RIGHT, body=(loop,)))
    with pytest.raises(VerifyError, match="races"):
        verify_kernel(replace(RIGHT, body=(replace(loop, ordered=False),)))


def _region(**fields: object) -> Lowered:
    whole = Lowered("r", ("x",), ("y",), {"x": X, "y": Y}, {}, (RIGHT,))
    return replace(whole, **fields)  # type: ignore[arg-type]


def test_a_region_stores_its_outputs_before_they_are_read() -> None:
    verify_lowered(_region())
    for check, broken in {
        "outputs": _region(steps=()),
        "order": _region(inputs=()),
        "buffers": _region(buffers={"x": X}),
    }.items():
        with pytest.raises(VerifyError) as error:
            verify_lowered(broken)
        assert error.value.check == check
