"""The traced array: the stand-in for a real one while a function is traced."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from fusewire.frontends.trace import indexing
from fusewire.frontends.trace.location import here, refusal
from fusewire.frontends.trace.memory import Lens
from fusewire.frontends.trace.table import xp
from fusewire.frontends.trace.views import ViewStep
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.operand import Traced

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording

# Methods that call the function of the same name with the array as its first argument.
_NAMES = (
    "all any argmax argmin argpartition argsort choose clip conj conjugate cumprod cumsum diagonal "
    "dot max mean min nonzero prod put ravel repeat round searchsorted squeeze std sum swapaxes "
    "take trace var"
)
METHODS = frozenset(_NAMES.split())
_POWERS: dict[float, Any] = {2: np.square, 0.5: np.sqrt, -1: np.reciprocal, 1: np.positive}
_OUTSIDE = (
    "An array that was made outside of the traced function cannot be assigned to or indexed by one "
    "that is traced: make it inside, or pass it as an argument. Use np.take(table, i) for "
    "table[i], and x.astype(np.float32) for np.float32(x)."
)
_NUMBER = (
    "range(n) and indices of lists need numbers that are known while tracing. Index arrays "
    "by arrays, loop a fixed number of times, or use fusewire.ops.while_."
)
_BRANCH = (
    "Use np.where(condition, a, b) (or np.maximum, np.minimum) to choose per element, "
    "fusewire.ops.cond to branch, fusewire.ops.while_ to loop."
)


class Tracer(NDArrayOperatorsMixin, Traced):
    """A traced array: a view of a cell. Known arrays have elements, others only a type.

    ``weak`` is the Python type of a number whose dtype follows the other operands (NEP 50).
    """

    __slots__ = ("_read", "is_scalar", "lens", "recording", "weak")
    __hash__ = None  # type: ignore[assignment]  # NumPy's arrays are not hashable either

    def __init__(
        self, recording: Recording, lens: Lens, *, is_scalar: bool = False, weak: Any = None
    ) -> None:
        self.recording = recording
        self.lens = lens
        self.is_scalar = is_scalar
        self.weak = weak
        self._read: tuple[object, int, Value] | None = None

    # What it stands for.

    @property
    def type(self) -> TensorType:
        return self.lens.type

    @property
    def known(self) -> Array | None:
        """The elements, where they are known while tracing. Not to be written."""
        return self.lens.known

    @property
    def is_written(self) -> bool:
        """Whether traced code has written to its memory, through any view."""
        return self.lens.cell.version > 0

    @property
    def value(self) -> Value:
        key = (self.recording.scope, self.lens.cell.version)
        if self._read is None or self._read[:2] != key:
            value = self.lens.read(self.recording.constant)
            self.recording.stamp(value)
            self._read = (*key, value)
        return self._read[2]

    def wrap(self, value: Value) -> Tracer:
        return self.recording.wrap(value)

    def see(self, *steps: ViewStep) -> Tracer:
        """Make a view of this view."""
        return Tracer(self.recording, Lens(self.lens.cell, (*self.lens.steps, *steps)))

    def snapshot(self) -> Tracer:
        """Copy to new memory; at rank 0 a scalar unless it is known."""
        known, recording = self.known, self.recording
        return recording.wrap(self.value) if known is None else recording.known(known.copy())

    def assign(self, new: Any) -> None:
        """Overwrite all of this view, as ``self[...] = new`` does."""
        lens, recording = self.lens, self.recording
        if self.is_scalar or not lens.is_writable:
            raise refusal("The destination of this assignment is read-only, as it is in NumPy.")
        if lens.cell.scope is not recording.scope:
            raise refusal(
                "A branch or loop body assigns to an array from outside of it. Return the new "
                "array from the body instead."
            )
        given = recording.array(new, self.dtype if type(new) in (bool, int, float) else None)
        elements = given.known
        if elements is not None and self.known is not None:
            lens.write_known(elements)
            return
        part = recording.value(given, self.type.dtype)
        makers = recording.constant, recording.measure
        recording.stamp(recording.checked(lens.write, part, *makers))

    # What arrays have.

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.recording.size(dim) for dim in self.type.shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        new = self.reshape(shape)
        if new.lens.cell is not self.lens.cell:
            raise AttributeError("incompatible shape for in-place modification")
        self.lens, self._read = new.lens, None

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
        layout = self.lens.layout
        return np.empty(0).flags if layout is None else layout.flags

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> Any:
        return self.size * self.itemsize

    device = "cpu"

    @property
    def T(self) -> Any:  # noqa: N802  # NumPy's name
        return xp.transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802  # NumPy's name
        return xp.matrix_transpose(self)

    @property
    def real(self) -> Any:
        return xp.real(self)

    @real.setter
    def real(self, new: Any) -> None:
        self.real.assign(new)

    @property
    def imag(self) -> Any:
        return xp.imag(self)

    @imag.setter
    def imag(self, new: Any) -> None:
        self.imag.assign(new)

    @property
    def flat(self) -> Any:
        flat = self.reshape(-1)
        if flat.lens.cell is not self.lens.cell:
            raise refusal("x.flat of an array that is not contiguous cannot be traced.")
        return flat

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            return partial(getattr(np, name), self)
        raise AttributeError(
            f"A traced array has no {name!r}. It has the attributes and methods of NumPy's "
            f"arrays that do not need the elements: {_NAMES} and others."
        )

    def reshape(self, *shape: Any, **options: Any) -> Any:
        return xp.reshape(self, shape[0] if len(shape) == 1 else shape, **options)

    def transpose(self, *axes: Any) -> Any:
        given = axes[0] if len(axes) == 1 else axes or None
        return xp.transpose(self, given)

    def astype(self, dtype: Any, *args: Any, copy: bool = True, **options: Any) -> Any:
        return xp.astype(self, np.dtype(dtype), copy=copy)

    def compress(self, condition: Any, axis: int | None = None) -> Any:
        return xp.compress(condition, self, axis)

    def copy(self, order: str = "C") -> Any:
        return self.recording.call(np.copy, (self,), {"order": order})

    def flatten(self, order: str = "C") -> Any:
        return self.reshape(-1, order=order).copy()

    def fill(self, value: Any) -> None:
        self.assign(value)

    def sort(self, axis: int = -1, **options: Any) -> None:
        self.assign(xp.sort(self, axis, **options))

    def view(self, dtype: Any = None) -> Any:
        return self.recording.call(np.ndarray.view, (self, dtype), {})

    def __pow__(self, other: Any) -> Any:
        # NumPy's operator has these special cases too; engines are faster and more exact on them.
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
            raise refusal(
                f"This line needs {asked} "
                f"The array {self.type} is known only when the program runs."
            )
        return known

    def __bool__(self) -> bool:
        return bool(self._elements(f"the truth of an array. {_BRANCH}"))

    def __int__(self) -> int:
        return int(self._elements("a Python int. Keep it an array: x.astype(np.int64)."))

    def __float__(self) -> float:
        # NumPy asks for a float too, if an array of the user's is assigned to.
        place = here()
        is_asked = place is not None and ("float(" in place.text or "math." in place.text)
        kept = "Keep it an array: np.sqrt(x) in place of math.sqrt(x)." if is_asked else _OUTSIDE
        return float(self._elements(f"a Python float. {kept}"))

    def __complex__(self) -> complex:
        return complex(self._elements("a Python complex number. Keep it an array."))

    def __index__(self) -> int:
        return int(self._elements(f"a number. {_NUMBER}").__index__())

    def item(self, *args: Any) -> Any:
        return self._elements("a Python number. Keep it an array.").item(*args)

    def tolist(self) -> Any:
        return self._elements("a Python list. Use np.stack to join arrays.").tolist()

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
