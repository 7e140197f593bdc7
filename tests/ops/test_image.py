"""Resizing, sampling and boxes against onnx's reference."""

import itertools

import numpy as np
import pytest

from fusewire import ops
from fusewire.errors import TypeRuleError
from tests.ops.onnx_oracle import run_onnx

RNG = np.random.default_rng(6)
COORDINATES = {
    "half_pixel": "half_pixel",
    "half_pixel_symmetric": "half_pixel_symmetric",
    "pytorch_half_pixel": "pytorch_half_pixel",
    "align_corners": "align_corners",
    "asymmetric": "asymmetric",
    "crop": "tf_crop_and_resize",
}
ROUNDINGS = {
    "half_down": "round_prefer_floor",
    "half_up": "round_prefer_ceil",
    "floor": "floor",
    "ceil": "ceil",
}
X = RNG.normal(size=(1, 2, 4, 5)).astype(np.float32)
ROI = np.array([0, 0, 0, 0.2, 1, 1, 1, 1.3], np.float32)
SIZES = [((1, 2, 7, 3), None), ((1, 2, 8, 10), None), ((1, 2, 2, 8), (1.0, 1.0, 0.625, 1.75))]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_is_that_of_onnx(mode: str, coordinates: str) -> None:
    flags = itertools.product((False, True), (False, True)) if mode != "nearest" else [(False,) * 2]
    roundings = ROUNDINGS if mode == "nearest" else {"floor": "floor"}
    roi = ROI if coordinates == "crop" else None
    for (antialias, outside), rounding, (sizes, scales) in itertools.product(
        flags, roundings, SIZES
    ):
        expected = run_onnx(
            "Resize",
            X,
            roi,
            None if scales is None else np.array(scales, np.float32),
            None if scales else np.array(sizes),
            mode=mode,
            nearest_mode=roundings[rounding],
            coordinate_transformation_mode=COORDINATES[coordinates],
            antialias=int(antialias),
            exclude_outside=int(outside),
            extrapolation_value=7.0,
            cubic_coeff_a=-0.5,
        )
        found = ops.resize(
            X,
            roi,
            sizes=sizes,
            scales=scales,
            mode=mode,
            coordinates=coordinates,
            rounding=rounding,
            cubic_a=-0.5,
            antialias=antialias,
            exclude_outside=outside,
            extrapolation=7.0,
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_smooth_resize_of_integers_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="needs floats"):
        ops.resize(np.zeros((2, 2), np.int32), sizes=(4, 4), mode="linear")


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample_is_that_of_onnx(mode: str, padding: str, align: bool) -> None:
    for image, places in (((2, 2, 4, 5), (2, 3, 4, 2)), ((1, 2, 3, 4, 2), (1, 2, 3, 2, 3))):
        x = RNG.normal(size=image).astype(np.float32)
        grid = RNG.uniform(-1.6, 1.6, places).astype(np.float32)
        expected = run_onnx(
            "GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=int(align)
        )
        found = ops.grid_sample(x, grid, mode=mode, padding=padding, align_corners=align)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("align", [False, True])
def test_affine_grid_is_that_of_onnx(align: bool) -> None:
    for sizes in ((3, 4), (2, 3, 4)):
        theta = RNG.normal(size=(2, len(sizes), len(sizes) + 1)).astype(np.float32)
        expected = run_onnx("AffineGrid", theta, np.array((2, 1, *sizes)), align_corners=int(align))
        found = ops.affine_grid(theta, sizes=sizes, align_corners=align)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("mode", "theirs"), [("average", "avg"), ("max", "max")])
def test_roi_align_is_that_of_onnx(mode: str, theirs: str, half: bool) -> None:
    x = RNG.normal(size=(2, 3, 7, 6)).astype(np.float32)
    corners = RNG.uniform(-3, 5, (8, 2)), RNG.uniform(1, 16, (8, 2))
    rois = np.concatenate(corners, 1).astype(np.float32)
    batches = RNG.integers(0, 2, 8)
    kind = "half_pixel" if half else "output_half_pixel"
    for sampling, scale in itertools.product((0, 2), (1.0, 0.5)):
        expected = run_onnx(
            "RoiAlign",
            x,
            rois,
            batches,
            mode=theirs,
            output_height=3,
            output_width=2,
            sampling_ratio=sampling,
            spatial_scale=scale,
            coordinate_transformation_mode=kind,
        )
        found = ops.roi_align(
            x,
            rois,
            batches,
            sizes=(3, 2),
            sampling=sampling,
            scale=scale,
            mode=mode,
            half_pixel=half,
        )
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("most", [1, 3, 50])
def test_chosen_boxes_are_those_of_onnx(most: int, center: bool) -> None:
    boxes = RNG.uniform(0, 1, (2, 30, 4)).astype(np.float32)
    boxes[0, 3] = 0
    scores = RNG.uniform(size=(2, 3, 30)).astype(np.float32)
    overlap, threshold = np.array([0.2], np.float32), np.array([0.3], np.float32)
    expected = run_onnx(
        "NonMaxSuppression",
        boxes,
        scores,
        np.array([most]),
        overlap,
        threshold,
        center_point_box=int(center),
    )
    limits = (np.array(most), overlap[0], threshold[0])
    found = ops.non_max_suppression(boxes, scores, *limits, center=center)
    np.testing.assert_array_equal(found, expected)
