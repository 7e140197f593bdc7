"""Samples of a user's own inputs: what int8 is calibrated and judged with.

Some of them are for measuring ranges, the others for judging what comes of it. Their digest is part
of the key of what is recorded, and names them where they are not at hand.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fusewire.errors import OptionsError
from fusewire.ir.dims import Symbol, bind_alone, evaluate, symbols
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType, Type

# More samples than this are not used, and fewer say too little about others.
MOST_SAMPLES, LEAST_SAMPLES = 1152, 8
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# The inputs of one call: in order, or by name.
Sample: TypeAlias = "Sequence[Array] | Mapping[str, Array]"


@dataclass(frozen=True)
class Calibration:
    """Samples of inputs; equal if their digests are. Without samples, it only names some.

    ``stacked`` has arrays of many samples by the names of inputs, as a file has them.
    """

    digest: str
    samples: tuple[Sample, ...] = field(default=(), compare=False, repr=False)
    stacked: Mapping[str, Array] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(data: Any) -> Calibration | None:
        """Take samples, the path of an .npz file, or a digest; OptionsError for anything else."""
        if data is None or isinstance(data, Calibration):
            return data
        if isinstance(data, str) and _DIGEST.fullmatch(data):
            return Calibration(data)
        if isinstance(data, str | os.PathLike):
            arrays = load_arrays(data, "calibrate")
            return Calibration(_digest([arrays]), stacked=arrays)
        is_one = isinstance(data, np.ndarray) and not data.ndim
        if is_one or isinstance(data, Mapping) or not isinstance(data, Iterable):
            raise OptionsError(
                f"calibrate={type(data).__name__}: give samples, each a tuple of arrays or a dict "
                "of them by the names of inputs, or the path of an .npz file."
            )
        if isinstance(data, Sequence | np.ndarray):
            data = spread(data, MOST_SAMPLES)
        samples = tuple(map(_sample, islice(data, MOST_SAMPLES)))
        if not samples:
            raise OptionsError("calibrate has no samples.")
        return Calibration(_digest(samples), samples)

    @property
    def is_stacked(self) -> bool:
        """Whether the samples lie in one array for each input, as a file has them."""
        return bool(self.stacked)

    @property
    def is_at_hand(self) -> bool:
        """Whether the samples are here, and not only their digest."""
        return bool(self.samples or self.stacked)

    def values(self, inputs: Sequence[Value]) -> list[list[Array]]:
        """Return the samples in the order of inputs; OptionsError if they do not fit."""
        found = self._ordered(inputs)
        if len(found) < LEAST_SAMPLES:
            raise OptionsError(
                f"calibrate has {len(found)} samples: give at least {LEAST_SAMPLES}. Half of them "
                "are for measuring, the others for judging."
            )
        for sample in found:
            _check(inputs, sample)
        return found

    def has_other_sizes(self, inputs: Sequence[Value]) -> bool:
        """Tell whether a sample differs from what a graph takes, and only in its sizes."""
        pairs = [pair for x in self._ordered(inputs) for pair in zip(inputs, x, strict=True)]
        if not all(_has_kind(*pair) for pair in pairs):
            return False
        return not all(_has_sizes(*pair) for pair in pairs)

    def _ordered(self, inputs: Sequence[Value]) -> list[list[Array]]:
        names = [value.name or "" for value in inputs]
        if not self.stacked:
            return [_ordered(sample, names) for sample in self.samples]
        types = {name: value.type for name, value in zip(names, inputs, strict=True)}
        rows = split_samples(self.stacked, types, "calibrate")
        return [[row[name] for name in names] for row in spread(rows, MOST_SAMPLES)]


def spread(samples: Sequence[Any] | Array, most: int) -> list[Any]:
    """Take so many samples from all over a sequence: it may be sorted."""
    if len(samples) <= most:
        return list(samples)
    places = np.linspace(0, len(samples) - 1, most).astype(int)
    return [samples[place] for place in places.tolist()]


def _sample(sample: Any) -> Sample:
    if isinstance(sample, Mapping):
        return {str(name): _array(value) for name, value in sample.items()}
    parts = sample if isinstance(sample, tuple | list) else (sample,)
    return tuple(map(_array, parts))


def _array(value: Any) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise OptionsError(f"A sample of calibrate has what is no array: {error}") from error
    if array.dtype.hasobject:
        raise OptionsError(
            f"A sample of calibrate has a {type(value).__name__} of {array.dtype}. Give arrays of "
            "the dtypes that the model takes."
        )
    return array


def _ordered(sample: Sample, names: Sequence[str]) -> list[Array]:
    if isinstance(sample, Mapping):
        if set(sample) != set(names):
            raise OptionsError(
                f"A sample of calibrate has {', '.join(sample) or 'nothing'}, and the model takes "
                f"{', '.join(names)}."
            )
        return [sample[name] for name in names]
    if len(sample) != len(names):
        raise OptionsError(
            f"A sample of calibrate has {len(sample)} arrays, and the model takes "
            f"{', '.join(names)}."
        )
    return list(sample)


def _check(inputs: Sequence[Value], sample: Sequence[Array]) -> None:
    """Raise OptionsError for a sample that does not fit, or whose sizes do not fit each other."""
    sizes: dict[Symbol, int] = {}
    for value, array in zip(inputs, sample, strict=True):
        is_fit = _has_kind(value, array) and _has_sizes(value, array)
        if is_fit:
            bind_alone(value.tensor.shape, array.shape, sizes)
            pairs = zip(value.tensor.shape, array.shape, strict=True)
            known = [(x, y) for x, y in pairs if all(s in sizes for s in symbols(x))]
            is_fit = all(evaluate(x, sizes) == y for x, y in known)
        if not is_fit:
            said = "".join(f" with {s.key}={size}" for s, size in sizes.items())
            raise OptionsError(
                f"A sample of calibrate has {array.dtype}{list(array.shape)} for {value.name}, and "
                f"the model takes {value.type}{said}."
            )


def _has_kind(value: Value, array: Array) -> bool:
    """Tell whether an array has the dtype and the number of axes of an input."""
    if not isinstance(value.type, TensorType):
        return False
    return array.dtype == value.tensor.dtype.numpy and array.ndim == value.tensor.rank


def _has_sizes(value: Value, array: Array) -> bool:
    """Tell whether an array has the sizes of an input that are fixed."""
    pairs = zip(value.tensor.shape, array.shape, strict=False)
    return all(x == y for x, y in pairs if isinstance(x, int))


def _digest(samples: Iterable[Sample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        named = sample.items() if isinstance(sample, Mapping) else enumerate(sample)
        for name, array in named:
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        digest.update(b"\n")
    return f"sha256:{digest.hexdigest()}"


def load_arrays(path: str | os.PathLike[str], what: str) -> dict[str, Array]:
    """Read the arrays of an .npz file; OptionsError if it is not one."""
    # Only who reads files needs them.
    import zipfile
    import zlib

    # An archive may be cut, damaged, encrypted, or packed by other means.
    faults = OSError, ValueError, EOFError, MemoryError, RuntimeError
    try:
        # NumPy leaves a file open that is no archive.
        with Path(path).open("rb") as file:
            archive: Any = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it has one array without a name; np.savez gives names")
            arrays = {name: archive[name] for name in archive.files}
        others = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
        if others:
            raise ValueError(f"it also has {', '.join(others)}")
    except (*faults, zipfile.BadZipFile, zlib.error) as error:
        raise OptionsError(
            f"{what}={os.fspath(path)}: it is not an .npz file of arrays: {error}"
        ) from error
    return arrays


def split_samples(
    arrays: Mapping[str, Array], types: Mapping[str, Type], what: str
) -> list[dict[str, Array]]:
    """Cut arrays into the inputs of each sample; OptionsError if they do not fit the model."""
    if arrays.keys() != types.keys():
        raise OptionsError(
            f"{what}: it has {', '.join(arrays) or 'nothing'}, and the model takes "
            f"{', '.join(types)}. Name the arrays after the inputs."
        )
    parts = {name: _split(name, array, types[name], what) for name, array in arrays.items()}
    counts = {name: len(part) for name, part in parts.items()}
    if len(set(counts.values())) != 1 or not min(counts.values()):
        shown = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise OptionsError(f"{what}: it has {shown} samples; give as many of each.")
    return [
        {name: part[number] for name, part in parts.items()}
        for number in range(min(counts.values()))
    ]


def _split(name: str, array: Array, type_: Type, what: str) -> list[Array]:
    """Cut an array into samples: along an axis of its own, or along the batch of the model."""
    if not isinstance(type_, TensorType) or array.dtype != type_.dtype.numpy:
        raise OptionsError(f"{what}: {name} is {type_}, but the file holds {array.dtype}.")
    rank = type_.rank
    if array.ndim == rank + 1:
        return [np.ascontiguousarray(x).reshape(x.shape) for x in array]
    if array.ndim != rank or not rank:
        raise OptionsError(
            f"{what}: {name} is {type_}, but the file holds {list(array.shape)}. Put samples along "
            "the first axis."
        )
    first = type_.shape[0]
    size = first if isinstance(first, int) else 1
    return [array[at : at + size] for at in range(0, len(array) - size + 1, max(size, 1))]
