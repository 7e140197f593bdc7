"""The benchmark of faults, in small: a parent survives, and nothing is left behind."""

from benchmarks.faults import HANGS, measure


def test_a_parent_survives_what_its_children_do() -> None:
    # The latency that counts is measured on a quiet machine; here it shows that there is an end.
    found = measure(crashes=12, hangs=len(HANGS), most_latency=5.0)
    assert not found["problems"]
