"""Places of nodes that stay exact, as text of an option."""

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.region import nodes_at, written_places
from fusewire.errors import OptionsError

GRAPH = fw.trace(lambda x: np.cos(np.sin(np.cos(np.sin(np.cos(x))))), np.ones(3, np.float32))
PLACES = [0, 2, 4]


@pytest.mark.parametrize(
    ("chosen", "text"), [((), ""), ((2,), "2"), ((0, 4), "0,4"), ((2, 4), "2-4"), (PLACES, "0-4")]
)
def test_places_are_read_as_they_were_written(chosen: tuple[int, ...], text: str) -> None:
    assert written_places(PLACES, chosen) == text
    # A range has none of the nodes in between that are exact anyway.
    assert nodes_at(GRAPH, text, PLACES) == {GRAPH.nodes[place] for place in chosen}


@pytest.mark.parametrize(
    "text", ["1", "0-3", "5", "-2", "0-2-4", "x", "2 ", "²", "4-0", "9" * 5000]
)
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(OptionsError, match="names no node that is computed in less"):
        nodes_at(GRAPH, text, PLACES)
