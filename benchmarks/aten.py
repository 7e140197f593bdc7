"""Does the conversion of PyTorch's ops compute what PyTorch computes? Its own samples tell.

    python benchmarks/aten.py [--count N] [--seed N] [--dtypes float64,...] [--json FILE] [NAME ...]

PyTorch's tests have samples for each of its functions (OpInfo, inside the wheel). Up to ``--count``
samples of each function and dtype are exported, converted and run on the reference. ``right`` is
within the tolerance of what PyTorch's eager mode returns, dtypes and shapes included; ``refused``
ended in a sentence; ``wrong`` is anything else, an error of another kind included. A function that
draws random numbers, or returns what is not a tensor, is left out.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import itertools
import json
import random
import sys
import types
import unittest
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusewire.contract.frontend import Limits
from fusewire.errors import FusewireError, TraceError
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.frontends.torch.frontend import TorchFrontend
from fusewire.frontends.torch.tensors import array_of
from fusewire.ops.interpret import interpret

# Among equal elements PyTorch finds any: only the values of these are compared.
TIED = ("topk", "kthvalue", "mode", "median", "nanmedian")
# How far float32 and float64 may be from PyTorch's answers; other dtypes are exact.
TOLERANCES = {"float64": (1e-6, 1e-7), "float32": (2e-4, 2e-5), "complex64": (2e-4, 2e-5)}
TOLERANCES |= {"complex128": (1e-6, 1e-7), "bfloat16": (5e-2, 5e-2), "float16": (5e-3, 5e-3)}


@dataclass
class Found:
    """What became of the samples of one function."""

    right: int = 0
    refused: int = 0
    wrong: int = 0
    said: dict[str, str] = field(default_factory=dict)


class Sample:
    """One call of a function: its tensors, and how they are put back."""

    def __init__(self, function: Any, sample: Any) -> None:
        self._function = function
        tree = (sample.input, sample.args, sample.kwargs)
        leaves, self._spec = torch.utils._pytree.tree_flatten(tree)
        self._places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.tensors = [leaves[i].detach().clone() for i in self._places]
        self._leaves = [None if isinstance(x, torch.Tensor) else x for x in leaves]

    def call(self, tensors: Sequence[Any]) -> list[Any]:
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        given, args, kwargs = torch.utils._pytree.tree_unflatten(leaves, self._spec)
        found = torch.utils._pytree.tree_leaves(self._function(given, *args, **kwargs))
        return [x for x in found if isinstance(x, torch.Tensor)]


def flat_call(samples: Sequence[Sample]) -> FlatCall:
    """Make one call of several samples: an export takes most of the time."""
    counts = [len(sample.tensors) for sample in samples]

    def run(*tensors: Any) -> list[Any]:
        rest = iter(tensors)
        parts = [list(itertools.islice(rest, count)) for count in counts]
        return [x for s, part in zip(samples, parts, strict=True) for x in s.call(part)]

    return FlatCall(run, None, tuple(f"x{i}" for i in range(sum(counts))), label="sample")


def verdict(samples: Sequence[Sample], is_tied: bool = False) -> tuple[str, str]:
    """Tell what became of samples that are converted together; every second result may differ."""
    tensors = [tensor for sample in samples for tensor in sample.tensors]
    with torch.no_grad():
        expected = [x for s in samples for x in s.call([t.clone() for t in s.tensors])]
    arrays = [np.array(array_of(x), order="C") for x in tensors]
    try:
        graph = TorchFrontend().open(flat_call(samples), Limits()).convert(arrays).graph
    except TraceError as error:
        return ("wrong" if "mistake of Fusewire" in str(error) else "refused"), str(error)
    except FusewireError as error:
        return "wrong", f"{type(error).__name__}: {error}"
    with np.errstate(all="ignore"):
        try:
            found = interpret(graph, arrays)
        except (FusewireError, ValueError, TypeError, IndexError) as error:
            return "wrong", f"{type(error).__name__}: {error}"
    step = 2 if is_tied else 1
    return compared(found[::step], [array_of(x.contiguous()) for x in expected[::step]])


def compared(found: Sequence[Any], expected: Sequence[Any]) -> tuple[str, str]:
    """Compare arrays with PyTorch's."""
    for left, right in zip(found, expected, strict=True):
        left = np.asarray(left)
        if left.dtype != right.dtype or left.shape != right.shape:
            return "wrong", f"{left.dtype}{left.shape} for {right.dtype}{right.shape}"
        relative, absolute = TOLERANCES.get(str(right.dtype), (0.0, 0.0))
        if right.dtype.kind not in "biufc":
            left, right = left.astype(np.float32), right.astype(np.float32)
        if not np.allclose(left, right, relative, absolute, equal_nan=True):
            with np.errstate(all="ignore"):
                wide = np.result_type(left, np.float32)
                worst = np.nanmax(np.abs(np.subtract(left, right, dtype=wide)))
            return "wrong", f"values differ by {worst} in {right.dtype}{right.shape}"
    return "right", ""


def samples_of(info: Any, dtype: Any, count: int, seed: int) -> list[Sample]:
    torch.manual_seed(seed)
    found = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    random.Random(seed).shuffle(found)
    return [Sample(info.op, sample) for sample in found[:count]]


def asked(names: Sequence[str]) -> Iterator[Any]:
    # PyTorch's tests import it for a class that the samples do not use.
    stub: Any = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if not names or info.name in names:
            yield info


def judge(info: Any, dtype: Any, count: int, seed: int, found: Found) -> None:
    try:
        samples = [s for s in samples_of(info, dtype, count, seed) if s.tensors]
        usable = [s for s in samples if is_repeatable(s)]
    except Exception as error:  # noqa: BLE001  # PyTorch's own samples may not run here
        found.said.setdefault("left out", str(error)[:200])
        return
    is_tied = info.name in TIED
    together = verdict(usable, is_tied) if usable else ("right", "")
    if together[0] == "right":
        found.right += len(usable)
        return
    for sample in usable:
        kind, said = verdict([sample], is_tied)
        setattr(found, kind, getattr(found, kind) + 1)
        if kind != "right":
            found.said.setdefault(kind, said)


def is_repeatable(sample: Sample) -> bool:
    """Tell whether two calls agree: some draw random numbers, or leave memory as it is."""
    with torch.no_grad():
        first, second = (sample.call([t.clone() for t in sample.tensors]) for _ in range(2))
    if not first or any(x.layout is not torch.strided for x in (*first, *sample.tensors)):
        return False
    return all(map(is_same, first, second))


def is_same(left: Any, right: Any) -> bool:
    if left.dtype.is_floating_point:
        left, right = torch.nan_to_num(left), torch.nan_to_num(right)
    return bool(torch.equal(left, right))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtypes", default="float64,int64")
    parser.add_argument("--part", default="0/1", help="every n-th function, from the k-th: k/n")
    parser.add_argument("--json")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    table: dict[str, Found] = {}
    for info in list(asked(args.names))[part::parts]:
        label = f"{info.name}.{info.variant_test_name}".rstrip(".")
        table[label] = judged(info, args.dtypes.split(","), args.count, args.seed)
        shown = "; ".join(f"{kind}: {said}" for kind, said in table[label].said.items())
        found = table[label]
        print(label, found.right, found.refused, found.wrong, " ".join(shown.split())[:300])
    total: collections.Counter[str] = collections.Counter()
    for found in table.values():
        total.update(right=found.right, refused=found.refused, wrong=found.wrong)
    print(dict(total), f"{len(table)} functions")
    if args.json:
        kept = {name: vars(found) for name, found in table.items()}
        Path(args.json).write_text(json.dumps(kept, indent=1), encoding="utf-8")


def judged(info: Any, dtypes: Sequence[str], count: int, seed: int) -> Found:
    """Judge the samples of a function in each dtype that it takes."""
    found = Found()
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for dtype in (getattr(torch, name) for name in dtypes):
            if dtype in info.dtypes:
                judge(info, dtype, count, seed, found)
    return found


if __name__ == "__main__":
    main()
