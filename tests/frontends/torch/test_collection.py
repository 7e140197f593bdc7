"""The layers of the collection become graphs that compute in float64 what eager does."""

import pytest

from benchmarks.module_case import held
from benchmarks.modules import collection
from benchmarks.modules.case import ModuleCase

# `benchmarks/module_doors.py` holds all of them, networks too, on every engine.
SMALL = [case for case in collection().values() if case.is_small]
OPTIONS = ("losses", "lstm_projected", "spectrum", "spatial_transformer", "upsample_linear",
           "embedding_bag", "distances", "adaptive_pool", "decode_step")  # fmt: skip
CASES = [*SMALL, *(collection()[name] for name in OPTIONS)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graph_is_held_against_eager_in_float64(case: ModuleCase) -> None:
    row = held(case)
    assert row["ok"], row


def test_resizing_stays_one_op() -> None:
    assert held(collection()["upsample_linear"])["nodes"] == 4
