"""What was far behind for one model is not tried for another that has the same blocks."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
OPTIONS: Any = {"start": "measured", "budget_seconds": 20.0, "level": 2, "fallback": "error"}


def waves(x: Any) -> Any:
    return np.tanh(np.cos(np.cos(np.cos(np.exp(x)))))


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``hills`` is slow at cos, which ``dales`` and the reference are not."""
    names = [fw.register(f"tests.cliffs:{name}", name) for name in ("dales", "hills")]
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: [*names, "reference"])
    yield
    for name in names:
        fw.unregister(name)


def tried(function: Any, **options: Any) -> dict[str, Any]:
    """Compile a function, and return the rows of what was tried."""
    program = fw.compile(fw.trace(function, X), X, **OPTIONS | options)
    np.testing.assert_allclose(program(X), function(X), rtol=1e-5)
    return {row.name: row for row in program.why().tried}


def test_candidate_that_was_far_behind_is_not_tried_again(store: Store) -> None:
    assert tried(waves)["hills"].seconds
    row = tried(lambda x: np.sqrt(np.abs(waves(x))))["hills"]
    assert row.status == "not tried"
    assert row.reason.startswith("In another model, which has ")
    assert row.reason.endswith(("times as long as dales.", "times as long as reference."))
    # A third model has it from the second, for the segments that both have.
    assert tried(lambda x: np.sqrt(np.abs(waves(x))) + x)["hills"].status == "not tried"


def test_model_that_shares_little_is_searched_in_full(store: Store) -> None:
    tried(waves)
    row = tried(lambda x: np.sqrt(np.abs(np.log(np.abs(np.sinh(waves(x) @ x)) + 1.0) @ x)))["hills"]
    assert row.status != "not tried"


def test_settings_of_another_kind_do_not_count(store: Store) -> None:
    tried(waves)
    row = tried(lambda x: np.sqrt(np.abs(waves(x))), threads=1)["hills"]
    assert row.status != "not tried"


@pytest.mark.parametrize("payload", [b"[1]", b"{", b'{"hills": "a"}', b'{"hills": -1, "dales": 1}'])
def test_records_that_make_no_sense_are_not_used(store: Store, payload: bytes) -> None:
    tried(waves)
    keys = [x.key for x in store.entries("measurement") if "segment" in dict(x.key.fields)]
    assert keys
    for key in keys:
        store.put(key, payload)
    assert tried(lambda x: np.sqrt(np.abs(waves(x))))["hills"].seconds
