"""What statements mean, each on a kernel written by hand."""

import numpy as np
import pytest

from fusewire.dtypes import DType, dtype, float16, float32, int32, int64
from fusewire.ir.graph import Array
from fusewire.kernel import interpret as interpreter
from fusewire.kernel.form import (
    Bound,
    BufferLoad,
    BufferStore,
    Carry,
    Combine,
    Compute,
    Fold,
    Holds,
    Kernel,
    KernelBuffer,
    Literal,
    Loop,
    Lowered,
    Place,
    Repeat,
    Statement,
    identity,
)
from fusewire.kernel.index import Axis, Held, Index, at
from fusewire.kernel.interpret import interpret
from fusewire.kernel.verify import verify_lowered

I, K = Axis("i", 3), Axis("k", 4)  # noqa: E741 - the name of the axis
NAN = float("nan")
Body = list[Statement]


def run(body: Body, x: Array, y: Array, *, axes: tuple[Axis, ...] = (I,)) -> Array:
    """Run a kernel that reads x and writes something of the shape and dtype of y."""
    given, made = (KernelBuffer(n, dtype(a.dtype), a.shape) for n, a in (("x", x), ("y", y)))
    kernel = Kernel("kernel", axes, tuple(body), (given,), (made,))
    region = Lowered("region", ("x",), ("y",), {"x": given, "y": made}, {}, (kernel,))
    verify_lowered(region)
    (found,) = interpret(region, [x])
    return found


def load(of: DType, *index: Index, name: str = "a", guard: tuple[Bound, ...] = ()) -> BufferLoad:
    return BufferLoad(name, of, "x", index, guard)


def test_a_load_outside_of_its_guard_reads_nothing() -> None:
    moved = at(I) - 1
    body: Body = [
        load(float32, moved, guard=(Bound(moved, 0, 3),)),
        BufferStore("y", (at(I),), "a"),
    ]
    x = np.array([5, 6, 7], np.float32)
    assert run(body, x, x).tolist() == [0, 5, 6]


def test_a_guard_is_also_a_value() -> None:
    body: Body = [Holds("h", (Bound(at(I), 1, 2),)), BufferStore("y", (at(I),), "h")]
    x = np.zeros(3, np.float32)
    assert run(body, x, np.zeros(3, bool)).tolist() == [False, True, False]


def test_held_values_are_clamped() -> None:
    body: Body = [
        load(int64, at(I)),
        Place("p", int32, at(Held("a", 3)) * 2),
        BufferStore("y", (at(I),), "p"),
    ]
    x = np.array([-4, 1, 9])
    assert run(body, x, np.zeros(3, np.int32)).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("add", 3.0), ("multiply", -24.0), ("maximum", 4.0), ("minimum", -2.0)],
)
def test_folds_combine_and_of_nothing_give_the_identity(combine: Combine, expected: float) -> None:
    x = np.tile(np.array([3, 4, -2, -2], np.float32), (3, 1))
    x[:, 3] = 1 if combine == "multiply" else -2
    fold = Fold(("f",), (float32,), combine, (K,), (load(float32, at(I), at(K)),), ("a",))
    body: Body = [fold, BufferStore("y", (at(I),), "f")]
    assert run(body, x, np.zeros(3, np.float32)).tolist() == [expected] * 3
    none = Axis("k", 0)
    fold = Fold(("f",), (float32,), combine, (none,), (load(float32, at(I), at(none)),), ("a",))
    empty = run([fold, BufferStore("y", (at(I),), "f")], x, np.zeros(3, np.float32))
    assert empty.tolist() == [identity(combine, float32)] * 3


def test_a_value_that_does_not_depend_on_the_fold_counts_every_time() -> None:
    fold = Fold(("f",), (float32,), "add", (K,), (), ("a",))
    body: Body = [load(float32, at(I)), fold, BufferStore("y", (at(I),), "f")]
    x = np.array([1, 2, 3], np.float32)
    assert run(body, x, x).tolist() == [4, 8, 12]


def test_half_floats_are_summed_in_float32() -> None:
    k = Axis("k", 4096)
    fold = Fold(("f",), (float16,), "add", (k,), (load(float16, at(k)),), ("a",))
    body: Body = [fold, BufferStore("y", (), "f")]
    x = np.ones(4096, np.float16)
    assert run(body, x, np.zeros((), np.float16), axes=()) == 4096


def test_the_first_of_equals_wins_and_nan_wins_over_all() -> None:
    x = np.array([[1, 3, 3, 2], [0, NAN, 5, NAN], [-1, -1, -1, -1]], np.float32)
    for combine, expected in (("argmax", [1, 1, 0]), ("argmin", [0, 1, 0])):
        inner = (load(float32, at(I), at(K)), Place("p", int32, at(K)))
        fold = Fold(("b", "w"), (float32, int32), combine, (K,), inner, ("a", "p"))  # type: ignore[arg-type]
        body: Body = [fold, BufferStore("y", (at(I),), "w")]
        assert run(body, x, np.zeros(3, np.int32)).tolist() == expected


def test_a_loop_in_order_carries_from_point_to_point() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    loop = Loop(
        (K,),
        (
            load(float32, at(I), at(K)),
            Compute("n", float32, "add", ("c", "a")),
            BufferStore("y", (at(I), at(K)), "n"),
        ),
        carries=(Carry("c", float32, "z", "n"),),
    )
    found = run([Literal("z", float32, 0.0), loop], x, x)
    np.testing.assert_array_equal(found, np.cumsum(x, 1))


def test_stores_in_order_let_the_last_one_win_and_combine_with_what_is_there() -> None:
    x = np.array([2.0, 3.0, 4.0], np.float32)
    for combine, expected in ((None, 4.0), ("add", 9.0)):
        store = BufferStore("y", (at(0),), "a", (), combine)  # type: ignore[arg-type]
        loop = Loop((I,), (load(float32, at(I)), store), ordered=True)
        assert run([loop], x, np.zeros(1, np.float32), axes=()).tolist() == [expected]


def test_integers_wrap_around() -> None:
    body: Body = [
        load(dtype("int8"), at(I)),
        Compute("s", dtype("int8"), "add", ("a", "a")),
        BufferStore("y", (at(I),), "s"),
    ]
    x = np.array([100, -100, 3], np.int8)
    assert run(body, x, x).tolist() == [-56, 56, 6]


def test_each_point_has_locals_of_its_own() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    given, made = KernelBuffer("x", float32, (3, 4)), KernelBuffer("y", float32, (3, 4))
    j = Axis("j", 4)
    fill = Loop((K,), (load(float32, at(I), at(K)), BufferStore("l", (at(K),), "a")))
    turned = Loop(
        (j,),
        (
            BufferLoad("b", float32, "l", (at(j) * -1 + 3,)),
            BufferStore("y", (at(I), at(j)), "b"),
        ),
    )
    kept = KernelBuffer("l", float32, (4,))
    kernel = Kernel("turn", (I,), (fill, turned), (given,), (made,), (kept,))
    region = Lowered("region", ("x",), ("y",), {"x": given, "y": made}, {}, (kernel,))
    verify_lowered(region)
    np.testing.assert_array_equal(interpret(region, [x])[0], x[:, ::-1])


def test_a_repeat_runs_its_kernels_once_a_step() -> None:
    step = Axis("step", 5)
    state = KernelBuffer("t", float32, (2,))
    made = KernelBuffer("y", float32, (5,))
    given = KernelBuffer("x", float32, (1,))
    start = Kernel(
        "start",
        (),
        (BufferLoad("a", float32, "x", (at(0),)), BufferStore("t", (at(0),), "a")),
        (given,),
        (state,),
    )
    double = Kernel(
        "double",
        (),
        (
            BufferLoad("a", float32, "t", (at(step) % 2,)),
            Compute("d", float32, "add", ("a", "a")),
            BufferStore("t", ((at(step) + 1) % 2,), "d"),
            BufferStore("y", (at(step),), "d"),
        ),
        (state,),
        (state, made),
        (),
        (step,),
    )
    buffers = {"x": given, "y": made, "t": state}
    region = Lowered("region", ("x",), ("y",), buffers, {}, (start, Repeat(step, (double,))))
    verify_lowered(region)
    (found,) = interpret(region, [np.array([3], np.float32)])
    assert found.tolist() == [6, 12, 24, 48, 96]


def test_a_large_space_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    fold = Fold(("f",), (float32,), "add", (K,), (load(float32, at(I), at(K)),), ("a",))
    body: Body = [fold, BufferStore("y", (at(I),), "f")]
    monkeypatch.setattr(interpreter, "MOST_POINTS", 5)
    np.testing.assert_array_equal(run(body, x, np.zeros(3, np.float32)), x.sum(1))
