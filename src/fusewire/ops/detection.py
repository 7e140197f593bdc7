"""Boxes in images: pool their content, and choose among them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, INTEGERS, int64
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.ops import limits, ranges
from fusewire.ops.declare import FRESH, NEEDS_ROOM, Family, Trait
from fusewire.ops.inference import fits, require, require_dims, same_dtype
from fusewire.ops.intervals import Samples
from fusewire.ops.requires import between, finite, sampled
from fusewire.ops.resampling import PLACES
from fusewire.ops.sample import bad, draw, given, sample

FAMILY = Family("detection")
_CORNERS = [
    [[0.0, 0.0, 1.0, 1.0], [0.0, 0.125, 1.0, 1.125], [0.0, 10.0, 1.0, 11.0], [1.0, 1.0, 0.0, 0.0]]
]
_SCORES = [[[0.875, 0.75, 0.5, 0.25], [0.25, 0.5, 0.375, 0.875]]]


def _roi_align_type(
    x: TensorType,
    rois: TensorType,
    batches: TensorType,
    *,
    sizes: tuple[int, int],
    sampling: int = 0,
    scale: float = 1.0,
    mode: str = "average",
    half_pixel: bool = True,
) -> TensorType:
    same_dtype(x, rois)
    require(mode in ("average", "max"), f"mode must be average or max, found {mode!r}.")
    require(x.rank == 4, f"needs [batch, channels, height, width], found {x}.")
    require(fits(rois, None, 4), f"rois must be [count, 4], found {rois}.")
    require(batches.dtype in INTEGERS, f"batches must be ints, found {batches.dtype}.")
    require(batches.rank == 1, f"batches must have rank 1, found {batches}.")
    require_dims(batches.shape[0], rois.shape[0], "the number of rois and of batches")
    return x.with_shape((rois.shape[0], x.shape[1], *sizes))


def _roi_grid(length: float, bins: int, sampling: int) -> int:
    return sampling or int(np.ceil(length / bins))


def _need_samples(lengths: list[float], sizes: tuple[int, int], sampling: int, x: Array) -> None:
    """Ask for the bytes of the samples of a box: how wide it is decides how many there are."""
    if (meter := limits.meter()) is None:
        return
    pairs = zip(lengths, sizes, strict=True)
    rows, columns = (max(bins * _roi_grid(length, bins, sampling), 0) for length, bins in pairs)
    # On each axis eight arrays of a place or a weight; of each sample its weight, three times in
    # float64, and of each channel four terms, their stack or sum, and two that are being made.
    sample_bytes = 3 * 8 + x.shape[1] * 10 * x.itemsize
    meter.need(8 * 8 * (rows + columns) + rows * columns * sample_bytes, where=" in roi_align")


def _samples_of(attrs: Mapping[str, Any]) -> Samples | None:
    """Say how large boxes decide their samples; engines read a count below 0 as none."""
    return None if attrs["sampling"] > 0 else Samples(attrs["sizes"], float(attrs["scale"]))


def _roi_taps(
    start: float, length: float, bins: int, sampling: int, dim: int
) -> tuple[Array, Array, Array]:
    """Give the two neighbours of each sample on one axis, and the weight of the second.

    The weight is NaN where a sample is too far outside to count.
    """
    grid = _roi_grid(length, bins, sampling)
    step = np.arange(bins * grid)
    at = start + (step // max(grid, 1) + (step % max(grid, 1) + 0.5) / max(grid, 1)) * length / bins
    far = (at < -1) | (at > dim)
    at = np.clip(at, 0, dim - 1)
    low = np.floor(at).astype(np.int64)
    return low, np.minimum(low + 1, dim - 1), np.where(far, np.nan, at - low)


def _roi_align(
    x: Array,
    rois: Array,
    batches: Array,
    sizes: tuple[int, int],
    sampling: int,
    scale: float,
    mode: str,
    half_pixel: bool,
) -> Array:
    out = np.zeros((len(rois), x.shape[1], *sizes), x.dtype)
    boxes = rois * scale - (0.5 if half_pixel else 0.0)
    for n, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        lengths = [y1 - y0, x1 - x0]
        if not half_pixel:
            lengths = [max(length, 1.0) for length in lengths]
        _need_samples(lengths, sizes, sampling, x)
        rows, columns = (
            _roi_taps(start, length, bins, sampling, dim)
            for start, length, bins, dim in zip((y0, x0), lengths, sizes, x.shape[2:], strict=True)
        )
        image = x[batches[n]]
        terms = []
        for i, j in itertools.product((0, 1), (0, 1)):
            part = image[:, rows[i][:, None], columns[j][None]]
            down = rows[2] if i else 1 - rows[2]
            across = columns[2] if j else 1 - columns[2]
            terms.append(part * np.nan_to_num(down[:, None] * across).astype(x.dtype))
        # ONNX takes the largest of the weighted neighbours, not of their sum.
        whole = sum(terms) if mode == "average" else np.max(terms, 0)
        parts = [n // bins for n, bins in zip(np.shape(whole)[1:], sizes, strict=True)]
        if 0 in parts:
            continue
        blocks = np.reshape(whole, (-1, sizes[0], parts[0], sizes[1], parts[1]))
        out[n] = np.mean(blocks, (2, 4)) if mode == "average" else np.max(blocks, (2, 4))
    return out


roi_align = FAMILY.declare(
    "roi_align",
    _roi_align_type,
    doc="Pool regions of images, given as [x0, y0, x1, y1], to one size with bilinear samples.",
    reference=_roi_align,
    dtypes=FLOATS,
    traits=(Trait.DISCONTINUOUS,),
    tolerance=PLACES,
    flops=64,
    index_operands=("batches",),
    requires=(
        between("batches", lambda operands: (0, operands.type("x").shape[0] - 1)),
        finite("rois"),
        sampled("rois", _samples_of),
    ),
    lacks={"scalar": "an image has axes"},
    not_folded=NEEDS_ROOM,
    samples=lambda: [
        *(
            sample(
                draw(2, 2, 5, 6),
                given([[0.3, 0.6, 4.1, 3.3], [-0.8, 1.1, 7.9, 2.2]]),
                given([1, 0], "int64"),
                sizes=(2, 3),
                mode=m,
                half_pixel=h,
                sampling=s,
            )
            for m, h, s in (("average", True, 2), ("max", False, 0), ("average", False, 0))
        ),
        sample(draw(1, 2, 4, 4), draw(0, 4), draw(0, dtype_="int64"), sizes=(2, 2)),
    ],
    refuses=lambda: [
        bad(
            "operands must have one dtype, found float32 and bool",
            "[1, 2, 4, 4]",
            "bool[0, 4]",
            "int64[0]",
            sizes=(2, 2),
        ),
        bad(
            "mode must be average or max, found 'odd'",
            "[1, 2, 4, 4]",
            "[0, 4]",
            "int64[0]",
            sizes=(2, 2),
            mode="odd",
        ),
        bad(
            "needs [batch, channels, height, width], found float32[]",
            "[]",
            "[0, 4]",
            "int64[0]",
            sizes=(2, 2),
        ),
        bad(
            "rois must be [count, 4], found float32[]",
            "[1, 2, 4, 4]",
            "[]",
            "int64[0]",
            sizes=(2, 2),
        ),
        bad("batches must be ints, found bool", "[1, 2, 4, 4]", "[0, 4]", "bool[0]", sizes=(2, 2)),
        bad(
            "batches must have rank 1, found int64[]",
            "[1, 2, 4, 4]",
            "[0, 4]",
            "int64[]",
            sizes=(2, 2),
        ),
        bad(
            "the number of rois and of batches must be equal, found 0",
            "[1, 2, 4, 4]",
            "[1, 4]",
            "int64[0]",
            sizes=(2, 2),
        ),
    ],
)


def _nms_type(
    boxes: TensorType,
    scores: TensorType,
    most: TensorType | None = None,
    overlap: TensorType | None = None,
    threshold: TensorType | None = None,
    *,
    center: bool = False,
    count: Dim = FRESH,
) -> TensorType:
    same_dtype(boxes, scores)
    right = fits(boxes, None, None, 4) and scores.rank == 3
    require(right, f"needs [batch, boxes, 4] and [batch, classes, boxes], found {boxes}, {scores}.")
    require_dims(boxes.shape[0], scores.shape[0], "batches")
    require_dims(boxes.shape[1], scores.shape[2], "numbers of boxes")
    for limit in (most, overlap, threshold):
        require(limit is None or limit.rank == 0, f"limits must be scalars, found {limit}.")
    return TensorType(int64, (count, 3))


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of corners [low, low, high, high]; 0 where a box has no area."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), 1)
    areas = np.prod(others[:, 2:] - others[:, :2], 1)
    union = areas + np.prod(box[2:] - box[:2]) - shared
    return np.where((shared > 0) & (union > 0), shared / np.where(union > 0, union, 1), 0)


def _nms(
    boxes: Array,
    scores: Array,
    most: Array | None,
    overlap: Array | None,
    threshold: Array | None,
    center: bool,
    count: int | None,
) -> Array:
    first, second = boxes[..., :2], boxes[..., 2:]
    if center:
        first, second = first - second / 2, first + second / 2
    corners = np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)
    limit = 0 if most is None else int(most)
    allowed = 0.0 if overlap is None else overlap
    chosen: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(scores.shape[:2]):
        score = scores[batch, kind]
        left = np.argsort(-score, kind="stable")
        left = left if threshold is None else left[score[left] > threshold]
        for _ in range(limit):
            if not len(left):
                break
            best, left = left[0], left[1:]
            chosen.append((batch, kind, int(best)))
            left = left[~(_overlaps(corners[batch, best], corners[batch, left]) > allowed)]
    return np.array(chosen, np.int64).reshape(-1, 3)


non_max_suppression = FAMILY.declare(
    "non_max_suppression",
    _nms_type,
    doc="List [batch, class, box] of the best boxes, without those that overlap a better one.",
    reference=_nms,
    dtypes=FLOATS,
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS),
    flops=64,
    index_operands=("most",),
    lacks={"scalar": "boxes have axes"},
    value_range=ranges.counts,
    samples=lambda: [
        sample(given(_CORNERS), given(_SCORES), given(2, "int64"), given(0.5, "float32")),
        sample(
            given(_CORNERS),
            given(_SCORES),
            given(9, "int64"),
            given(0.5, "float32"),
            given(0.45, "float32"),
            center=True,
        ),
        sample(given(_CORNERS), given(_SCORES)),
        sample(
            given([[[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.5]]]),
            given([[[0.9, 0.8]]]),
            given(2, "int64"),
            given(0.5, "float32"),
        ),
        sample(draw(1, 0, 4), draw(1, 2, 0), given(3, "int64")),
    ],
    refuses=lambda: [
        bad("operands must have one dtype, found float32 and bool", "[1, 4, 4]", "bool[1, 2, 4]"),
        bad("needs [batch, boxes, 4] and [batch, classes, boxes], found", "[]", "[1, 2, 4]"),
        bad("batches must be equal, found 2 and 1", "[2, 4, 4]", "[1, 2, 4]"),
        bad("numbers of boxes must be equal, found 5 and 4", "[1, 5, 4]", "[1, 2, 4]"),
        bad("limits must be scalars, found int64[1]", "[1, 0, 4]", "[1, 2, 0]", "int64[1]"),
    ],
)
