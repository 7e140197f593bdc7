"""A slice of PyTorch's own samples; benchmarks/aten.py runs all of them."""

import pytest

from benchmarks.aten import asked, judged

NAMES = (
    "nn.functional.conv2d",
    "nn.functional.layer_norm",
    "nn.functional.gelu",
    "nn.functional.interpolate",
    "nn.functional.avg_pool2d",
    "index_put",
    "index_select",
    "cumsum",
    "floor_divide",
    "clamp",
    "std",
    "sort",
    "where",
    "as_strided_scatter",
    "nanmean",
)


@pytest.mark.filterwarnings("ignore")
def test_samples_are_right_or_refused() -> None:
    found = {info.name: judged(info, ["float32", "int64"], 2, 0) for info in asked(NAMES)}
    assert {name: x.said for name, x in found.items() if x.wrong} == {}
    assert sum(x.right for x in found.values()) >= 30
