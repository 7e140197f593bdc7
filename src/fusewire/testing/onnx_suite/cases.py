"""The cases of the onnx package, compared by its own code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

# Maps the inputs of a model in order to its outputs: arrays, lists of arrays, None.
Run: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
# Takes a ModelProto.
Prepare: TypeAlias = Callable[[Any], Run]

_SUFFIX = "_cpu"


class Suite:
    """All cases by name, "kind/case"; creating them takes seconds, as their data is computed."""

    def __init__(self) -> None:
        self._door = _Door()
        with warnings.catch_warnings():
            # Some cases overflow on purpose while their data is made.
            warnings.simplefilter("ignore")
            self._tests = _tests(self._door)

    @property
    def names(self) -> list[str]:
        return list(self._tests)

    def run(self, name: str, prepare: Prepare, home: str) -> None:
        """Run one case, which may write files to ``home``; raises if anything goes wrong."""
        self._door.side = prepare
        os.environ["ONNX_HOME"] = home
        self._tests[name](None)


class _Door:
    """A backend for the runner of the onnx package."""

    side: Prepare

    def supports_device(self, device: str) -> bool:
        return device == "CPU"

    def prepare(self, model: Any, device: str, **_: Any) -> _Prepared:
        return _Prepared(self.side(model))


class _Prepared:
    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        # The runner passes scalars; engines take arrays. Lists are sequences, None is absent.
        given = [x if x is None or isinstance(x, list) else np.asarray(x) for x in inputs]
        return list(self._run(given))


def _tests(door: _Door) -> Mapping[str, Callable[[None], None]]:
    from onnx.backend.test.runner import Runner

    class Strict(Runner):  # type: ignore[misc] # the onnx package has no types
        @classmethod
        def assert_similar_outputs(
            cls, ref_outputs: Any, outputs: Any, *rest: Any, **k: Any
        ) -> None:
            _same_lengths(ref_outputs, outputs)
            super().assert_similar_outputs(ref_outputs, outputs, *rest, **k)

    found = {}
    for cases in Strict(door).test_cases.values():
        kind = cases.__name__.removeprefix("OnnxBackend").removesuffix("ModelTest")
        for name in sorted(vars(cases)):
            if name.endswith(_SUFFIX):
                found[f"{kind}/{name.removesuffix(_SUFFIX)}"] = getattr(cases, name)
    return found


def _same_lengths(wanted: Any, found: Any) -> None:
    """Compare the lengths of lists in outputs, which the runner does not check."""
    if not isinstance(wanted, list | tuple):
        return
    for one, other in zip(wanted, found, strict=False):
        if isinstance(one, list) and isinstance(other, list | tuple):
            assert len(one) == len(other), f"a sequence of {len(other)} tensors, not {len(one)}"
