"""Trees of tensors: what PyTorch takes apart, and dataclasses that it does not know."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, final

import torch
from torch.utils import _pytree as pytree

from fusewire.contract.frontend import Spec, plain_key


@final
class _TensorPlace:
    """Stands for a tensor in a tree."""

    def __repr__(self) -> str:
        return "tensor"


_TENSOR = _TensorPlace()
# Values that are part of a program: equal ones are the same program.
PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


@dataclass(frozen=True)
class _Fields:
    """A dataclass in a tree: its class, and the tree of its fields."""

    kind: type
    tree: Tree


@dataclass(frozen=True, eq=False)
class Tree:
    """The structure of arguments or of a result; all but tensors is part of it.

    >>> tree, tensors = Tree.of({"a": torch.ones(2), "b": (1, None)})
    >>> tree.restore(["first"])
    {'a': 'first', 'b': (1, None)}
    """

    spec: pytree.TreeSpec
    parts: tuple[Any, ...]

    @staticmethod
    def of(value: Any) -> tuple[Tree, list[Any]]:
        """Take a value apart; Specs count as tensors."""
        tensors: list[Any] = []
        return _tree(value, tensors), tensors

    def restore(self, tensors: Sequence[Any]) -> Any:
        """Put tensors into the tree."""
        return _restored(self, iter(tensors))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for trees with the same structure and the same plain values."""
        return self.spec, tuple([_part_key(part) for part in self.parts])

    @property
    def strange(self) -> type | None:
        """The type of a value that cannot be part of a program; None if all can."""
        for part in self.parts:
            kind = part.tree.strange if isinstance(part, _Fields) else type(part)
            if kind is not None and kind not in (_TensorPlace, _Fields, *PLAIN):
                return kind if not issubclass(kind, enum.Enum) else None
        return None

    @property
    def has_numbers(self) -> bool:
        """Whether it has numbers: those of a result may depend on the shapes of arguments."""
        return any(
            part.tree.has_numbers
            if isinstance(part, _Fields)
            else isinstance(part, int | float | complex | torch.SymInt | torch.SymFloat)
            and not isinstance(part, bool)
            for part in self.parts
        )

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor by itself."""
        return self.spec.is_leaf() and self.parts == (_TENSOR,)

    @property
    def row(self) -> type[tuple[Any, ...]] | type[list[Any]] | None:
        """``tuple`` or ``list`` if it is a plain one of tensors and nothing else, or None."""
        spec = self.spec
        if spec.type not in (tuple, list) or spec.num_children != len(self.parts):
            return None
        is_plain = all(part is _TENSOR for part in self.parts)
        return spec.type if is_plain and spec.num_leaves == len(self.parts) else None

    def names(self) -> list[str]:
        """Name the tensors after their places."""
        paths = pytree.tree_flatten_with_path(pytree.tree_unflatten(self.parts, self.spec))[0]
        return [name for path, part in paths for name in _names(pytree.keystr(path), part)]


def _tree(value: Any, tensors: list[Any]) -> Tree:
    leaves, spec = pytree.tree_flatten(value)
    return Tree(spec, tuple([_part(leaf, tensors) for leaf in leaves]))


def _part(leaf: Any, tensors: list[Any]) -> Any:
    if isinstance(leaf, torch.Tensor | Spec):
        tensors.append(leaf)
        return _TENSOR
    if is_dataclass(leaf) and not isinstance(leaf, type):
        values = {field.name: getattr(leaf, field.name) for field in fields(leaf)}
        return _Fields(type(leaf), _tree(values, tensors))
    return leaf


def _restored(tree: Tree, tensors: Iterator[Any]) -> Any:
    leaves = [_restored_part(part, tensors) for part in tree.parts]
    return pytree.tree_unflatten(leaves, tree.spec)


def _restored_part(part: Any, tensors: Iterator[Any]) -> Any:
    if part is _TENSOR:
        return next(tensors)
    if isinstance(part, _Fields):
        # Without __init__: it may take other arguments, or change what it is given.
        made: Any = object.__new__(part.kind)
        for name, value in _restored(part.tree, tensors).items():
            object.__setattr__(made, name, value)
        return made
    return part


def _part_key(part: Any) -> Any:
    if part is _TENSOR:
        return _TENSOR
    return (part.kind, part.tree.key) if isinstance(part, _Fields) else plain_key(part)


def _names(path: str, part: Any) -> Iterator[str]:
    if part is _TENSOR:
        yield _plain_name(path)
    elif isinstance(part, _Fields):
        for name in part.tree.names():
            yield f"{_plain_name(path)}.{name}".lstrip(".")


def _plain_name(path: str) -> str:
    """Write a path as other names of inputs are: "[0]['mask']" becomes "0.mask"."""
    return ".".join(x.strip("'\"") for x in path.replace("]", "").lstrip("[.").split("["))
