"""Ops of ai.onnx.ml: labels, features, trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusewire.dtypes import int32
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import (
    activation,
    creation,
    elementwise,
    indexing,
    logic,
    movement,
    normalization,
    reduction,
)

# Each step down the trees becomes nodes; targets and members become constants.
_DEEPEST, _MOST_TARGETS, _MOST_MEMBERS = 1000, 2**20, 2**24
_KINDS: Mapping[str, tuple[type[Any], Any]] = {
    "strings": (object, "_Unused"),
    "int64s": (np.int64, -1),
    "floats": (np.float32, -0.0),
}


def _listed(call: OnnxCall, stem: str) -> tuple[Array, str]:
    """Read keys or values from the one attribute that has them, and tell which."""
    held = call.attr(f"{stem}_tensor")
    if held is not None:
        return call.importer.opened.constant(held).array.reshape(-1), "tensor"
    kind = next((kind for kind in _KINDS if call.attr(f"{stem}_{kind}") is not None), None)
    if kind is None:
        call.refuse(f"one of {stem}_tensor, {', '.join(f'{stem}_{k}' for k in _KINDS)} is needed.")
    return np.array(call.attr(f"{stem}_{kind}"), _KINDS[kind][0]), kind


def _default(call: OnnxCall, kind: str, values: Array) -> Any:
    if kind != "tensor":
        return call.attr(f"default_{kind[:-1]}", _KINDS[kind][1])
    held = call.attr("default_tensor")
    if held is not None:
        return call.importer.opened.constant(held).array.reshape(-1)[0]
    text = {"O": "_Unused", "i": -1, "u": -1}
    return text.get(values.dtype.kind, -0.0)


def _label_encoder(call: OnnxCall) -> Converted:
    if call.opset >= 2:
        (keys, _), (values, kind) = _listed(call, "keys"), _listed(call, "values")
        return _looked_up(call[0], keys, values, _default(call, kind, values))
    words = np.array(call.needed("classes_strings"), object)
    places = np.arange(len(words))
    if call[0].tensor.dtype.name == "string":
        return _looked_up(call[0], words, places, call.attr("default_int64", -1))
    return _looked_up(call[0], places, words, call.attr("default_string", "_Unused"))


def _looked_up(x: Value, keys: Array, values: Array, default: Any) -> Value:
    """Give the value of each element's key; of keys that are repeated the last counts."""
    last = {key: place for place, key in enumerate(keys.tolist())}
    chosen = sorted(last.values())
    keys, values = keys[chosen], np.append(values[chosen], np.array([default], values.dtype))
    each = movement.expand_dims(x, axes=(x.tensor.rank,))
    known = constant(keys.astype(x.tensor.dtype.numpy))
    same = logic.equal(each, known)
    if keys.dtype.kind == "f":
        same = logic.logical_or(same, logic.logical_and(logic.isnan(each), logic.isnan(known)))
    # Behind all keys stands one that fits everything: the default.
    any_ = creation.full(constant(np.array(True)), shape=(*x.tensor.shape, 1))
    place = reduction.argmax(cast(movement.concat(same, any_, axis=-1), int32), axis=-1)
    return indexing.gather(constant(values), place, axis=0)


def _features(call: OnnxCall) -> Converted:
    x, places = call[0], call[1]
    flat = movement.reshape(places, shape=(places.tensor.size,))
    found = indexing.gather(x, flat, axis=x.tensor.rank - 1)
    return found if x.tensor.rank > 1 else movement.expand_dims(found, axes=(0,))


def _binarizer(call: OnnxCall) -> Converted:
    above = logic.greater(call[0], call.attr("threshold", 0.0))
    return cast(above, call[0].tensor.dtype)


# In the order of the numbers of nodes_modes; what is a member of a set comes after them.
_MODES = (
    logic.less_equal,
    logic.less,
    logic.greater_equal,
    logic.greater,
    logic.equal,
    logic.not_equal,
)
_MEMBER = 6


class _Forest:
    """Trees as arrays over nodes; a leaf is a node that leads to itself."""

    def __init__(self, call: OnnxCall) -> None:
        def ints(name: str) -> Array:
            return np.array(call.needed(name), np.int64)

        def tensor(name: str) -> Array:
            return call.importer.opened.constant(call.needed(name)).array

        self.roots, self.count = ints("tree_roots"), len(ints("nodes_featureids"))
        weights = tensor("leaf_weights")
        leaves = self.count + np.arange(len(weights))
        self.then, self.otherwise = (
            np.append(ints(f"nodes_{way}nodeids") + self.count * ints(f"nodes_{way}leafs"), leaves)
            for way in ("true", "false")
        )
        more = np.zeros(len(weights), np.int64)
        self.features = np.append(ints("nodes_featureids"), more)
        self.splits = np.append(tensor("nodes_splits"), more.astype(weights.dtype))
        self.modes = np.append(tensor("nodes_modes").astype(np.int64), more)
        missing = call.attr("nodes_missing_value_tracks_true") or (0,) * self.count
        self.missing = np.append(np.array(missing, np.bool_), more.astype(np.bool_))
        self.weights = np.append(np.zeros(self.count, weights.dtype), weights)
        self.targets = np.append(np.zeros(self.count, np.int64), ints("leaf_targetids"))
        named = "membership_values" in call.attrs
        self.members = self._sets(tensor("membership_values")) if named else None

    def _sets(self, listed: Array) -> Array | None:
        """Give each node the members of its set, filled up with NaN."""
        nodes = np.flatnonzero(self.modes == _MEMBER)
        if not len(nodes):
            return None
        ends = np.flatnonzero(np.isnan(listed))
        sets = np.split(listed, ends)[: len(nodes)]
        width = max(map(len, sets))
        if len(self.modes) * width > _MOST_MEMBERS:
            raise FormatError(f"{len(self.modes):,} nodes with sets of {width:,} are too many.")
        found = np.full((len(self.modes), width), np.nan, self.splits.dtype)
        for node, members in zip(nodes, sets, strict=True):
            found[node, : len(members)] = members
        return found

    @property
    def depth(self) -> int:
        """Count the steps that lead from any root to a leaf."""
        steps, nodes = 0, np.unique(self.roots)
        while (nodes < self.count).any():
            if steps == _DEEPEST:
                raise FormatError(f"Its trees are more than {_DEEPEST:,} deep, or have no leaf.")
            nodes = np.unique(np.concatenate([self.then[nodes], self.otherwise[nodes]]))
            steps += 1
        return steps

    def step(self, x: Value, nodes: Value) -> Value:
        """Go from nodes [rows, trees] one branch further."""

        def at(table: Array) -> Value:
            return indexing.gather(constant(table), nodes, axis=0)

        value = indexing.gather_elements(x, at(self.features), axis=1)
        split, mode = at(self.splits.astype(x.tensor.dtype.numpy)), at(self.modes)
        used = np.unique(self.modes)
        holds = _MODES[0](value, split)
        for number, compare in enumerate(_MODES[1:], 1):
            if number in used:
                holds = logic.where(logic.equal(mode, number), compare(value, split), holds)
        if self.members is not None:
            members = at(self.members.astype(x.tensor.dtype.numpy))
            same = logic.equal(movement.expand_dims(value, axes=(2,)), members)
            is_in = reduction.reduce_any(same, axes=(2,))
            holds = logic.where(logic.equal(mode, _MEMBER), is_in, holds)
        if self.missing.any():
            holds = logic.where(logic.isnan(value), at(self.missing), holds)
        return logic.where(holds, at(self.then), at(self.otherwise))


def _tree_ensemble(call: OnnxCall) -> Converted:
    x, forest = call[0], _Forest(call)
    rows = x.tensor.shape[0]
    nodes = movement.broadcast_to(constant(forest.roots), shape=(rows, len(forest.roots)))
    for _ in range(forest.depth):
        nodes = forest.step(x, nodes)
    weights = indexing.gather(constant(forest.weights.astype(x.tensor.dtype.numpy)), nodes, axis=0)
    targets = indexing.gather(constant(forest.targets), nodes, axis=0)
    targets_there = call.within(call.needed("n_targets"), _MOST_TARGETS, "n_targets")
    places = constant(np.arange(targets_there))
    own = logic.equal(movement.expand_dims(targets, axes=(2,)), places)
    found = _aggregated(call, movement.expand_dims(weights, axes=(2,)), own, len(forest.roots))
    transform = call.attr("post_transform", 0)
    if transform == 1:
        return normalization.softmax(found, axis=-1)
    if transform == 2:
        return activation.sigmoid(found)
    if transform:
        call.refuse(f"post_transform {transform} is not known: NONE, SOFTMAX and LOGISTIC are.")
    return found


def _aggregated(call: OnnxCall, weights: Value, own: Value, trees: int) -> Value:
    """Combine what the trees say for each target."""
    how = call.attr("aggregate_function", 1)
    if how in (0, 1):
        total = reduction.reduce_sum(logic.where(own, weights, 0.0), axes=(1,))
        return elementwise.divide(total, float(trees)) if how == 0 else total
    reduce = reduction.reduce_min if how == 2 else reduction.reduce_max
    found = reduce(logic.where(own, weights, np.inf if how == 2 else -np.inf), axes=(1,))
    return logic.where(reduction.reduce_any(own, axes=(1,)), found, 0.0)


READERS: Mapping[str, Read] = {
    "ai.onnx.ml:LabelEncoder": _label_encoder,
    "ai.onnx.ml:ArrayFeatureExtractor": _features,
    "ai.onnx.ml:Binarizer": _binarizer,
    "ai.onnx.ml:TreeEnsemble": _tree_ensemble,
}
