"""What a program says of the cache: off, missed, and hit."""

from typing import Any

import numpy as np

import fusewire as fw
from fusewire.store.disk import Store

X = np.linspace(-1, 1, 6, dtype=np.float32)


def caches(**options: Any) -> list[str]:
    program = fw.compile(
        lambda x: np.tanh(x) * 2, fw.Spec((6,), "float32"), backend="onnxruntime", **options
    )
    np.testing.assert_allclose(program(X), np.tanh(X) * 2, rtol=1e-6)
    return [contact.cache for contact in program.why().contacts]


def test_contact_says_whether_the_cache_had_it(store: Store) -> None:
    off, missed, hit = caches(cache=False)[0], caches()[0], caches()[0]
    assert off == "The cache is off."
    assert "no artifact" in missed
    assert hit == "hit"
