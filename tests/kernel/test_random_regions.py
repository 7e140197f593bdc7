"""Random fused regions: the interpreter of kernels agrees with the oracle.

`benchmarks/fused_regions.py` does the same for as many as one likes.
"""

import pytest

from tests.kernel.regions import random_region

REGIONS, PARTS = 200, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_of_random_regions_are_right(part: int) -> None:
    wrong = {}
    for seed in range(part, REGIONS, PARTS):
        verdict = random_region(seed).judge()
        if verdict.status == "wrong":
            wrong[seed] = verdict.reason
    assert not wrong
