"""What is reported as fused is what engines run, by their own account."""

import pytest

from benchmarks.fusing import ENGINES, compared


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pattern", ["convolution + batch norm", "reduction + elementwise"])
def test_report_agrees_with_the_engines_own_dump(engine: str, pattern: str) -> None:
    kernels, dump, agrees = compared(engine, pattern)
    assert agrees, (kernels, dump)
    assert dump.total() == len(kernels)
