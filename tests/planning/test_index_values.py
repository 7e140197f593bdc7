"""A sample of benchmarks/index_values.py: engines do with bad indices what the reference does."""

import numpy as np
import pytest

import fusewire as fw
from tests.planning.index_models import VALUES, differs, models, outcome

SAMPLE = ("gather", "scatter_elements add", "gather_nd places", "reverse_sequence", "dynamic_top_k")


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "torch", "xla"])
@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.filterwarnings("ignore::fusewire.errors.FallbackWarning")
def test_engine_refuses_the_indices_that_the_reference_refuses(name: str, engine: str) -> None:
    refused = 0
    for model in models([name]):
        program, reference = (
            fw.compile(model.graph, backend=backend, isolate=False, cache=False, fallback="allow")
            for backend in (engine, "reference")
        )
        expected = outcome(reference, model.inputs)
        assert not isinstance(expected, str)
        assert differs(outcome(program, model.inputs), expected) == ""
        for label, value in VALUES.items():
            inputs = model.with_index(value(model.dim))
            if inputs is not None:
                wanted = outcome(reference, inputs)
                assert differs(outcome(program, inputs), wanted) == "", f"{model.name}: {label}"
                refused += isinstance(wanted, str)
        assert differs(outcome(program, model.inputs), expected) == ""
    assert refused > 10


def test_difference_of_outcomes_is_seen() -> None:
    assert differs([1.0], [1.0]) == ""
    assert differs([1.0], [2.0])
    assert differs([1.0], "CheckError: no")
    assert differs("CheckError: so", "CheckError: no")
    assert differs(np.zeros(2).tolist(), np.zeros(3).tolist())
