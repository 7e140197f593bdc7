"""The importer refuses what it does not read, each for its reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fusewire.onnx
from fusewire.errors import FormatError, FusewireError
from fusewire.onnx.frontend import OnnxFrontend
from fusewire.ops.outside import OUTSIDE
from tests.onnx.refusals import REFUSALS, Refusal
from tests.refusal_sites import importer_refusals, lines_of, reached, sites

FOLDER = Path(fusewire.onnx.__file__).parent


@pytest.fixture(autouse=True)
def custom_op() -> Iterator[None]:
    """Have an op for a custom domain."""
    op = OUTSIDE.register("tests.onnx.custom_ops:scaled")
    yield
    OUTSIDE.unregister(op.name)


def load(refusal: Refusal) -> None:
    OnnxFrontend().read(refusal.model())


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.id)
def test_model_is_refused_for_its_reason(refusal: Refusal) -> None:
    with pytest.raises(FormatError) as caught:
        load(refusal)
    assert refusal.reason in str(caught.value)


def test_every_refusal_has_a_model() -> None:
    lines = set()
    for refusal in REFUSALS:
        try:
            load(refusal)
        except FusewireError as error:
            lines |= lines_of(error)
    files = [*FOLDER.glob("ops/*.py"), *FOLDER.glob("read/*.py")]
    every = sites(files, importer_refusals)
    assert len(every) > 50
    unchecked = every - reached(every, lines)
    shown = sorted(f"{Path(file).relative_to(FOLDER)}:{line}" for file, line, _ in unchecked)
    assert not shown, f"No model of tests/onnx/refusals.py reaches the refusals at {shown}."
