"""Resizing on any axes: where output elements come from, and with which weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, INTEGERS, REAL, bool_
from fusewire.ir.dims import Dim, Shape, size, unbacked
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Family, Kind, Tolerance, Trait
from fusewire.ops.inference import fits, require, within
from fusewire.ops.sample import Sample, bad, draw, given, sample

FAMILY = Family("resampling")
# Engines compute places in float32: the error grows with the axis, not with the value.
PLACES = Tolerance("scaled", 64.0)


@dataclass(frozen=True)
class ResizedAxis:
    """One axis to resize; ``width`` is its output size before it was cut to a whole number."""

    size: int
    count: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def width(self) -> float:
        return self.scale * self.size

    @property
    def is_same(self) -> bool:
        whole = self.scale == 1.0 and self.size == self.count
        return whole and (self.start, self.end) == (0.0, 1.0)


def _half_pixel(axis: ResizedAxis, at: Array) -> Array:
    return (at + 0.5) / axis.scale - 0.5


def _crop(axis: ResizedAxis, at: Array) -> Array:
    last = axis.size - 1
    if axis.width == 1:
        return np.full_like(at, 0.5 * (axis.start + axis.end) * last)
    return axis.start * last + at * (axis.end - axis.start) * last / (axis.width - 1)


def _symmetric(axis: ResizedAxis, at: Array) -> Array:
    return axis.size / 2 * (1 - axis.count / axis.width) + (at + 0.5) / axis.scale - 0.5


# How the place of an output element becomes a place in the operand.
COORDINATES: dict[str, Callable[[ResizedAxis, Array], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda axis, at: _half_pixel(axis, at) if axis.width > 1 else at * 0.0,
    "align_corners": lambda axis, at: (
        at * 0.0 if axis.width == 1 else at * (axis.size - 1) / (axis.width - 1)
    ),
    "asymmetric": lambda axis, at: at / axis.scale,
    "crop": _crop,
}
# The functions below take the namespace of their arrays, so that an engine may run them too.
ROUNDINGS: dict[str, Callable[..., Array]] = {
    "half_down": lambda at, xp=np: xp.ceil(at - 0.5),
    "half_up": lambda at, xp=np: xp.floor(at + 0.5),
    "floor": lambda at, xp=np: xp.floor(at),
    "ceil": lambda at, xp=np: xp.ceil(at),
}
MODES = ("nearest", "linear", "cubic")


def cubic_weight(distance: Array, a: float, xp: Any = np) -> Array:
    """Weigh by the cubic convolution kernel of Keys."""
    d = xp.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weight: Array = xp.where(d <= 1, near, xp.where(d < 2, far, 0.0))
    return weight


def linear_weight(distance: Array, a: float = 0.0, xp: Any = np) -> Array:
    """Weigh by closeness."""
    close: Array = xp.maximum(1 - xp.abs(distance), 0.0)
    return close


def taps_of(
    axis: ResizedAxis,
    at: Array,
    mode: str,
    cubic_a: float,
    antialias: bool,
    exclude_outside: bool,
    xp: Any = np,
) -> tuple[Array, Array]:
    """Find for each place the elements that count, and their weights: two [count, taps]."""
    weigh, reach = (cubic_weight, 2) if mode == "cubic" else (linear_weight, 1)
    stretch = min(axis.scale, 1.0) if antialias else 1.0
    first = int(np.floor(-reach / stretch)) + 1
    left = xp.ceil(at) - 1
    steps = np.arange(first, 2 - first)
    weights = weigh((steps - (at - left)[:, None]) * stretch, cubic_a, xp)
    taps = left[:, None].astype(np.int64) + steps
    if exclude_outside:
        weights = xp.where((taps < 0) | (taps >= axis.size), 0.0, weights)
    if antialias or exclude_outside:
        total = weights.sum(1, keepdims=True)
        weights = weights / xp.where(total == 0, 1.0, total)
    return taps, weights


def _resize_type(
    x: TensorType,
    roi: TensorType | None = None,
    *,
    sizes: Shape,
    scales: tuple[float, ...] | None = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "half_down",
    cubic_a: float = -0.75,
    antialias: bool = False,
    exclude_outside: bool = False,
    extrapolation: float = 0.0,
) -> TensorType:
    """``scales`` where they are not sizes divided; ``roi`` holds all starts, then all ends."""
    check_resize(x, roi, scales, mode, coordinates, rounding)
    require(len(sizes) == x.rank, f"one size an axis needed, found {sizes}.")
    for dim, count in zip(x.shape, sizes, strict=True):
        grows = dim == 0 and within(1, count)
        require(not grows, f"an axis of size 0 cannot become {count}.")
    return x.with_shape(sizes)


def check_resize(
    x: TensorType,
    roi: TensorType | None,
    scales: Sequence[float] | None,
    mode: str,
    coordinates: str,
    rounding: str,
) -> None:
    """Refuse what resizing cannot do."""
    for name, found, table in (
        ("mode", mode, MODES),
        ("coordinates", coordinates, COORDINATES),
        ("rounding", rounding, ROUNDINGS),
    ):
        require(found in table, f"{name} must be one of {', '.join(table)}, found {found!r}.")
    floats = mode == "nearest" or x.dtype in FLOATS
    require(floats, f"mode {mode} computes, and so needs floats; cast {x.dtype} first.")
    require(scales is None or len(scales) == x.rank, f"one scale an axis needed, found {scales}.")
    given_ = coordinates != "crop" or roi is not None
    require(given_, "coordinates crop need a roi.")
    if roi is not None:
        require(fits(roi, 2 * x.rank), f"a roi needs {2 * x.rank} elements, found {roi}.")


def resize_array(
    x: Array,
    roi: Array | None,
    sizes: Sequence[int],
    scales: Sequence[float] | None,
    mode: str,
    coordinates: str,
    rounding: str,
    cubic_a: float,
    antialias: bool,
    exclude_outside: bool,
    extrapolation: float,
) -> Array:
    """Resize axis by axis; places are computed in float64."""
    bounds = np.repeat([0.0, 1.0], x.ndim) if coordinates != "crop" or roi is None else roi
    outside = np.zeros((), np.bool_)
    for i, (length, count) in enumerate(zip(x.shape, sizes, strict=True)):
        scale = count / max(length, 1) if scales is None else float(scales[i])
        axis = ResizedAxis(length, count, scale, float(bounds[i]), float(bounds[x.ndim + i]))
        if axis.is_same or x.size == 0:
            x = x if axis.is_same else np.zeros((*x.shape[:i], count, *x.shape[i + 1 :]), x.dtype)
            continue
        at = COORDINATES[coordinates](axis, np.arange(count, dtype=np.float64))
        column = (-1,) + (1,) * (x.ndim - 1 - i)
        if coordinates == "crop":
            outside = outside | ((at < 0) | (at > length - 1)).reshape(column)
        if mode == "nearest":
            x = np.take(x, ROUNDINGS[rounding](at).astype(np.int64), i, mode="clip")
            continue
        taps, weights = taps_of(axis, at, mode, cubic_a, antialias, exclude_outside)
        parts = zip(taps.T, weights.T.astype(x.dtype), strict=True)
        x = sum(
            (np.take(x, t, i, mode="clip") * w.reshape(column) for t, w in parts), x.dtype.type(0)
        )
    return np.where(outside, x.dtype.type(extrapolation), x)


def resize_samples() -> list[Sample]:
    """Cover every mode, coordinate system and rounding once, and the corners of each."""
    half = {"sizes": (1, 3, 5), "scales": (1.0, 0.6, 1.7)}
    smooth = {"mode": "cubic", "sizes": (1, 2, 3)}
    computed: list[dict[str, Any]] = [
        *(
            {"mode": m, "coordinates": c, **half}
            for c in COORDINATES
            if c != "crop"
            for m in ("linear", "cubic")
        ),
        {**smooth, "exclude_outside": True},
        {**smooth, "antialias": True, "cubic_a": -0.5},
        {**smooth, "mode": "linear", "antialias": True, "exclude_outside": True},
        {"mode": "linear", "sizes": (1, 1, 1), "coordinates": "pytorch_half_pixel"},
        {"mode": "linear", "sizes": (1, 1, 1), "coordinates": "align_corners"},
    ]
    roi = given([0.0, 0.1, -0.2, 1.0, 0.8, 1.1], "float32")
    return [
        *(sample(draw(1, 4, 3), None, sizes=(1, 7, 2), rounding=r) for r in ROUNDINGS),
        *(sample(draw(1, 4, 3), None, only=FLOATS, **attrs) for attrs in computed),
        *(
            sample(
                draw(1, 4, 3),
                roi,
                sizes=(1, n, 3),
                coordinates="crop",
                mode="linear",
                extrapolation=7.0,
                only=FLOATS,
            )
            for n in (4, 1)
        ),
        sample(draw(), None, sizes=()),
        sample(draw(0, 2), None, sizes=(0, 4)),
    ]


def _resize_flops(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    before, after = inputs[0].shape, outputs[0].shape
    if not (inputs[0].is_static and outputs[0].is_static and attrs["antialias"]):
        return size(after) * 8
    # Making smaller with antialias looks at all that becomes one element, and more.
    scales = attrs["scales"] or [n / max(m, 1) for m, n in zip(before, after, strict=True)]
    taps = sum(4 / min(scale, 1.0) for scale in scales if scale > 0)
    return size(tuple(map(max, before, after))) * int(min(2 * taps + 8, 2**62))


def _resize_kind(attrs: Mapping[str, Any]) -> Kind:
    return Kind.MAP if attrs["mode"] == "nearest" else Kind.WINDOW


resize = FAMILY.declare(
    "resize",
    _resize_type,
    doc="Resize axes, interpolating between neighbours.",
    reference=resize_array,
    dtypes=(bool_, *REAL),
    tolerance=PLACES,
    flops=_resize_flops,
    kind=_resize_kind,
    samples=resize_samples,
    refuses=lambda: [
        bad(
            "rounding must be one of half_down, half_up, floor, ceil",
            "[1, 4, 3]",
            sizes=(1, 7, 2),
            rounding="odd",
        ),
        bad("one size an axis needed, found (1, 7, 2)", "[]", sizes=(1, 7, 2), rounding="ceil"),
        bad(
            "mode cubic computes, and so needs floats; cast bool first",
            "bool[1, 4, 3]",
            mode="cubic",
            coordinates="half_pixel",
            sizes=(1, 3, 5),
            scales=(1.0, 0.6, 1.7),
        ),
        bad(
            "one scale an axis needed, found (0,)",
            "[1, 4, 3]",
            sizes=(1, 7, 2),
            rounding="ceil",
            scales=(0,),
        ),
        bad("an axis of size 0 cannot become 1", "[0, 4, 3]", sizes=(1, 7, 2), rounding="ceil"),
        bad("coordinates crop need a roi", "[2, 3]", sizes=(2, 3), coordinates="crop"),
    ],
)


def _dynamic_type(
    x: TensorType,
    sizes: TensorType,
    scales: TensorType | None = None,
    roi: TensorType | None = None,
    *,
    dims: Shape,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "half_down",
    cubic_a: float = -0.75,
    antialias: bool = False,
    exclude_outside: bool = False,
    extrapolation: float = 0.0,
) -> TensorType:
    check_resize(x, roi, None, mode, coordinates, rounding)
    right = sizes.dtype in INTEGERS and fits(sizes, x.rank) and len(dims) == x.rank
    require(right, f"one int size and dim an axis needed, found {sizes} and {dims}.")
    given_ = scales is None or fits(scales, x.rank)
    require(given_, f"one scale an axis needed, found {scales}.")
    return x.with_shape(dims)


def _dynamic(x: Array, sizes: Array, scales: Any, roi: Any, dims: Any, **attrs: Any) -> Array:
    listed = None if scales is None else scales.tolist()
    return resize_array(x, roi, sizes.tolist(), listed, **attrs)


dynamic_resize = FAMILY.declare(
    "dynamic_resize",
    _dynamic_type,
    doc="Resize to sizes (and by scales, if those differ) given by operands.",
    reference=_dynamic,
    dtypes=(bool_, *REAL),
    traits=(Trait.UNBACKED,),
    tolerance=PLACES,
    flops=8,
    index_operands=("sizes",),
    steady=("sizes", "scales", "roi"),
    output_shapes=lambda x, sizes, *rest, **attrs: [sizes.tolist()],
    samples=lambda: [
        sample(draw(2, 3), given([2, 5], "int64"), dims=(2, unbacked("columns"))),
        sample(
            draw(2, 3), given([2, 5], "int64"), given([1.0, 1.7], "float32"), dims=(2, 5), only=REAL
        ),
        sample(draw(), draw(0, dtype_="int64"), dims=()),
        sample(draw(0, 2), given([0, 4], "int64"), dims=(0, 4)),
    ],
    refuses=lambda: [
        bad("a roi needs 0 elements, found float32[]", "[]", "int64[0]", None, "[]", dims=()),
        bad("one int size and dim an axis needed, found int64[] and ()", "[]", "int64[]", dims=()),
        bad("one scale an axis needed, found float32[]", "[]", "int64[0]", "[]", dims=()),
        bad("one int size and dim an axis needed, found bool[0] and ()", "[]", "bool[0]", dims=()),
        bad(
            "one int size and dim an axis needed, found int64[0] and (0,)",
            "[]",
            "int64[0]",
            dims=(0,),
        ),
    ],
)
