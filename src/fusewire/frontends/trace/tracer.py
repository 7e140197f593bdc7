"""The array that stands in for a real one while a function is traced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from fusewire.frontends.trace import indexing
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.table import xp
from fusewire.frontends.trace.views import Cell, Part, Pick, ReadOnly, Step, is_known, reshaped
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.operand import Traced
from fusewire.ops.movement import broadcast_to

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording

# Methods that are the function of the same name with the array first.
METHODS = (
    "all any argmax argmin argpartition argsort choose clip conj conjugate cumprod cumsum diagonal "
    "dot max mean min nonzero prod put ravel repeat round searchsorted squeeze std sum swapaxes "
    "take trace var"
).split()  # fmt: skip
_POWERS: dict[float, Any] = {2: np.square, 0.5: np.sqrt, -1: np.reciprocal, 1: np.positive}
_OUTSIDE = (
    "An array that was made outside of the traced function cannot be assigned to or indexed by one "
    "that is traced: make it inside, or pass it as an argument. Use np.take(table, i) for "
    "table[i], and x.astype(np.float32) for np.float32(x)."
)
_BRANCH = (
    "Use np.where(condition, a, b) (or np.maximum, np.minimum) to choose per element, "
    "fusewire.ops.cond to branch, fusewire.ops.while_ to loop."
)


class Tracer(NDArrayOperatorsMixin, Traced):  # type: ignore[misc]  # the mixin has untyped parts
    """An array under trace: a view of a cell. Known arrays have elements, others only a type.

    ``weak`` is the Python type of a number whose dtype follows the other operands (NEP 50).
    """

    __slots__ = ("_seen", "cell", "is_scalar", "recording", "steps", "type", "weak")
    # NumPy's arrays are not hashable either.
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        recording: Recording,
        cell: Cell,
        steps: tuple[Step, ...] = (),
        *,
        is_scalar: bool = False,
        weak: type | None = None,
    ) -> None:
        self.recording = recording
        self.cell = cell
        self.steps = steps
        self.is_scalar = is_scalar
        self.weak = weak
        of = cell.type.dtype
        if any(isinstance(step, Part) for step in steps):
            of = TensorType(of, ()).with_dtype(f"float{of.bits // 2}").dtype
        self.type = TensorType(of, steps[-1].shape if steps else cell.type.shape)
        self._seen: tuple[object, int, Value] | None = None

    # What it stands for.

    @property
    def known(self) -> Array | None:
        """The elements, where they are known while tracing. Not to be written."""
        if self.cell.known is None or not all(map(is_known, self.steps)):
            return None
        return reduce(lambda array, step: step.view(array), self.steps, self.cell.known)

    @property
    def value(self) -> Value:
        scope, cell = self.recording.scope, self.cell
        if self._seen is not None and self._seen[:2] == (scope, cell.version):
            return self._seen[2]
        known = self.known
        if known is not None:
            value = self.recording.constant(known)
        else:
            whole = cell.value if cell.known is None else self.recording.constant(cell.known)
            assert whole is not None
            value = reduce(lambda value, step: step.read(value), self.steps, whole)
        self.recording.stamp(value)
        self._seen = (scope, cell.version, value)
        return value

    def wrap(self, value: Value) -> Tracer:
        return self.recording.wrap(value)

    @property
    def layout(self) -> Array | None:
        """An array with the strides this one would have, never to be read; None if sizes vary."""
        if self.cell.layout is None or not all(isinstance(dim, int) for dim in self.type.shape):
            return None
        if not all(is_known(step) or isinstance(step, Pick) for step in self.steps):
            return None
        return reduce(lambda array, step: step.view(array), self.steps, self.cell.layout)

    def see(self, *steps: Step) -> Tracer:
        """Make a view of this view."""
        return Tracer(self.recording, self.cell, (*self.steps, *steps))

    def snapshot(self) -> Tracer:
        """Copy into new memory; of rank 0, a scalar."""
        known = self.known
        if known is None:
            return self.recording.wrap(self.value)
        return self.recording.known(known.copy())

    def assign(self, new: Any) -> None:
        """Write elements over all of this view, as ``self[...] = new`` does."""
        cell, recording = self.cell, self.recording
        if self.is_scalar or any(isinstance(step, ReadOnly) for step in self.steps):
            raise refusal("The destination of this assignment is read-only, as it is in NumPy.")
        if cell.scope is not recording.scope:
            raise refusal(
                "A branch or loop body assigns to an array from outside of it. Return the new "
                "array from the body instead."
            )
        given = recording.array(new, self.dtype if isinstance(new, int | float) else None)
        source = given.known
        if source is not None and self.known is not None:
            target = reduce(lambda array, step: step.view(array), self.steps, cell.own())
            target[...] = source
        else:
            self._write(recording.value(given, self.type.dtype))
        cell.version += 1

    def _write(self, part: Value) -> None:
        cell, recording = self.cell, self.recording
        # NumPy lets the new elements have leading axes of size 1.
        extra = max(part.tensor.rank - self.type.rank, 0)
        part = reshaped(part, part.tensor.shape[extra:])
        if part.tensor.shape != self.type.shape:
            part = broadcast_to(part, shape=self.type.shape)
        whole = cell.value if cell.known is None else recording.constant(cell.known)
        assert whole is not None
        stages = [whole]
        for step in self.steps[:-1]:
            stages.append(step.read(stages[-1]))
        for step, stage in zip(reversed(self.steps), reversed(stages), strict=False):
            part = step.write(stage, part, recording.measure)
        recording.stamp(part)
        cell.value, cell.known = part, None

    # What arrays have.

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.recording.size(dim) for dim in self.type.shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        new = self.reshape(shape)
        if new.cell is not self.cell:
            raise AttributeError("incompatible shape for in-place modification")
        self.steps, self.type, self._seen = new.steps, new.type, None

    @property
    def ndim(self) -> int:
        return self.type.rank

    @property
    def size(self) -> Any:
        return self.recording.size(self.type.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.type.dtype.numpy

    @property
    def flags(self) -> Any:
        return np.empty(0).flags if self.layout is None else self.layout.flags

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> Any:
        return self.size * self.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def T(self) -> Tracer:  # noqa: N802  # NumPy's name
        return xp.transpose(self)

    @property
    def mT(self) -> Tracer:  # noqa: N802  # NumPy's name
        return xp.matrix_transpose(self)

    @property
    def real(self) -> Tracer:
        return xp.real(self)

    @real.setter
    def real(self, new: Any) -> None:
        self.real.assign(new)

    @property
    def imag(self) -> Tracer:
        return xp.imag(self)

    @imag.setter
    def imag(self, new: Any) -> None:
        self.imag.assign(new)

    @property
    def flat(self) -> Tracer:
        return xp.ravel(self)

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            return partial(getattr(np, name), self)
        raise AttributeError(
            f"An array under trace has no {name!r}. It has the attributes and methods of NumPy's "
            f"arrays that do not need the elements: {', '.join(METHODS)} and others."
        )

    def reshape(self, *shape: Any, **options: Any) -> Tracer:
        return xp.reshape(self, shape[0] if len(shape) == 1 else shape, **options)

    def transpose(self, *axes: Any) -> Tracer:
        given = axes[0] if len(axes) == 1 else axes or None
        return xp.transpose(self, given)

    def astype(self, dtype: Any, *args: Any, copy: bool = True, **options: Any) -> Tracer:
        return xp.astype(self, np.dtype(dtype), copy=copy)

    def compress(self, condition: Any, axis: int | None = None) -> Tracer:
        return xp.compress(condition, self, axis)

    def copy(self, order: str = "C") -> Tracer:
        return self.recording.call(np.copy, (self,), {})

    def flatten(self, order: str = "C") -> Tracer:
        return self.reshape(-1, order=order).copy()

    def fill(self, value: Any) -> None:
        self.assign(value)

    def sort(self, axis: int = -1, **options: Any) -> None:
        self.assign(xp.sort(self, axis, **options))

    def partition(self, kth: Any, axis: int = -1, **options: Any) -> None:
        self.sort(axis)

    def view(self, dtype: Any = None) -> Tracer:
        return self.recording.call(np.ndarray.view, (self, dtype), {})

    def __pow__(self, other: Any) -> Any:
        # NumPy's operator takes these ways too, and an engine is faster and more exact on them.
        short = _POWERS.get(other) if type(other) in (int, float) else None
        if short is None or not (self.type.dtype.is_inexact or other == 2) or self.weak:
            return xp.power(self, other)
        return short(self)

    # What Python and NumPy ask for.

    def __repr__(self) -> str:
        return f"<array {self.type}>" if self.known is None else repr(self.known)

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return self.recording.call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self.recording.call(function, args, options)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return self.recording.rebinder(np)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._elements(f"the elements. {_OUTSIDE}"), dtype)

    def _elements(self, asked: str) -> Array:
        known = self.known
        if known is None:
            self._unknown(f"for {asked}")
        return known

    def _unknown(self, asked: str) -> NoReturn:
        raise refusal(
            f"This line asks {asked} The array {self.type} is known only when the program runs."
        )

    def __bool__(self) -> bool:
        return bool(self._elements(f"the truth of an array. {_BRANCH}"))

    def __int__(self) -> int:
        return int(self._elements("a Python int. Keep it an array, as in x.astype(np.int64)."))

    def __float__(self) -> float:
        kept = "Keep it an array: np.sqrt(x) in place of math.sqrt(x)."
        return float(self._elements(f"a Python float. {kept} {_OUTSIDE}"))

    def __complex__(self) -> complex:
        return complex(self._elements("a Python complex number. Keep it an array."))

    def __index__(self) -> int:
        found = self._elements(
            "a number, as range(n) or an index of a list needs. Index arrays by arrays, loop a "
            "fixed number of times, or use fusewire.ops.while_."
        )
        return int(found.__index__())

    def item(self, *args: Any) -> Any:
        return self._elements("a Python number. Keep it an array.").item(*args)

    def tolist(self) -> Any:
        return self._elements("a Python list. Use np.stack to join arrays.").tolist()

    def tobytes(self) -> bytes:
        return self._elements("bytes.").tobytes()

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        size = self.shape[0]
        return size if isinstance(size, int) else size.__index__()

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __getitem__(self, key: Any) -> Any:
        return indexing.read(self, key)

    def __setitem__(self, key: Any, new: Any) -> None:
        indexing.write(self, key, new)
