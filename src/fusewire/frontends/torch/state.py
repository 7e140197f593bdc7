"""The state of a module: its tensors, parts, attributes and modes, so that a call sees changes.

A check before every call must take well under a microsecond for each parameter, so it goes through
lists in C. It notices tensors that were written to (their versions), replaced or moved (their
memory), parts and plain attributes that were replaced, hooks that were added, and modes of
training. Some writes do not count as a version: those of fused optimizers are counted by a hook;
of ``tensor.data`` a sample of some tensors is compared at each call, of others every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook

from fusewire.contract.calling import StateGuard
from fusewire.errors import EngineError
from fusewire.frontends.torch.arrays import call_array
from fusewire.ir.graph import Array
from fusewire.process.guard import guarded

_version = attrgetter("_version")
_data_ptr = torch.Tensor.data_ptr
_values = dict.values
_shape, _stride = attrgetter("shape"), torch.Tensor.stride
_to_bytes, _NOTHING = np.ndarray.tobytes, np.empty(0)
# What every module has, and no forward depends on.
_INTERNAL = frozenset(vars(nn.Module()))
# The most elements of a tensor that are compared, and about how many of a larger one.
_WHOLE, _SOME = 64, 16
# How many tensors are compared in each call.
_EACH = 8


@final
class ModuleState(StateGuard):
    """The state of a module when this was made."""

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.modules())
        self._attributes = [part.__dict__ for part in parts]
        self._plain = [_plain_attributes(x) for x in self._attributes]
        self._noted = self._attributes_now()
        # Those that can be changed in place, and what is in them.
        self._contents = [
            (value, value.copy())
            for values in self._noted
            for value in values
            if type(value) in (list, dict, set)
        ]
        self._dicts = [*self._attributes, *(hooks for part in parts for hooks in _hooks(part))]
        self._sizes = list(map(len, self._dicts))
        # Empty ones are left out: what is registered later is not used by what was read.
        self._children = [part._modules for part in parts if part._modules]
        self._modules = list(chain.from_iterable(map(_values, self._children)))
        self._tensors = [holder for part in parts for holder in _holders(part)]
        # Tensors that are plain attributes, and not registered.
        self._loose = [(x, name) for x in self._attributes for name in _loose_names(x)]
        # A parameter that was left out is None.
        self._has_gaps = any(x is None for holder in self._tensors for x in holder.values())
        tensors = self._now()
        # Tensors made in inference mode have no versions.
        self._has_versions = not any(tensor.is_inference() for tensor in tensors)
        self._pointers = list(map(_data_ptr, tensors))
        self._versions = list(map(_version, tensors)) if self._has_versions else []
        self._shapes, self._strides = list(map(_shape, tensors)), list(map(_stride, tensors))
        self._elements = list(map(_some_elements, tensors))
        self._bytes = list(map(_to_bytes, self._elements))
        self._turn = 0

    def _attributes_now(self) -> list[tuple[Any, ...]]:
        return [get(x) for get, x in zip(self._plain, self._attributes, strict=True)]

    def _now(self) -> list[torch.Tensor]:
        tensors = list(chain.from_iterable(map(_values, self._tensors)))
        if self._has_gaps:
            tensors = [tensor for tensor in tensors if tensor is not None]
        if self._loose:
            tensors += [attributes[name] for attributes, name in self._loose]
        return tensors

    def holds(self) -> bool:
        """Return whether the module is as it was."""
        return _is_true(self._is_same)

    def is_passing(self) -> bool:
        """Return whether only modes differ."""
        return _is_true(self._is_same_but_modes)

    def _is_same(self) -> bool:
        return self._attributes_now() == self._noted and self._has_all()

    def _is_same_but_modes(self) -> bool:
        now = self._attributes_now()
        is_same = [x[1:] for x in now] == [x[1:] for x in self._noted]
        return now != self._noted and is_same and self._has_all()

    def _has_all(self) -> bool:
        """Return whether all but plain attributes is as it was."""
        if list(map(len, self._dicts)) != self._sizes:
            return False
        if list(chain.from_iterable(map(_values, self._children))) != self._modules:
            return False
        if self._contents and any(value != before for value, before in self._contents):
            return False
        tensors = self._now()
        if list(map(_data_ptr, tensors)) != self._pointers:
            return False
        if self._has_versions and list(map(_version, tensors)) != self._versions:
            return False
        # Other threads may take the same turn, which is no harm.
        turn = slice(self._turn, self._turn + _EACH)
        self._turn = turn.stop if turn.stop < len(tensors) else 0
        return self._has_elements(tensors[turn], turn)

    def _has_elements(self, tensors: list[torch.Tensor], turn: slice) -> bool:
        """Tell whether tensors in the same memory have the same elements, as far as seen."""
        return (
            list(map(_to_bytes, self._elements[turn])) == self._bytes[turn]
            and list(map(_stride, tensors)) == self._strides[turn]
            and list(map(_shape, tensors)) == self._shapes[turn]
        )


def _is_true(question: Callable[[], bool]) -> bool:
    """Answer a question about a module; no if it raises: something else is in a place of it."""
    try:
        # Attributes may compare in any way.
        return guarded("A module", "load", "what it had", question)
    except EngineError:
        return False


def _some_elements(tensor: torch.Tensor) -> Array:
    """View some elements of a tensor; none if that takes a copy."""
    try:
        array = call_array(tensor.detach())
    except ValueError:
        return _NOTHING
    if not array.flags.c_contiguous and not array.flags.f_contiguous:
        return _NOTHING
    flat: Array = array.reshape(-1, order="A")
    return flat if flat.size <= _WHOLE else flat[:: flat.size // _SOME]


def _plain_attributes(attributes: dict[str, Any]) -> Any:
    """Return what takes the mode and the plain attributes of a module, in a tuple."""
    loose = _loose_names(attributes)
    names = [name for name in attributes if name not in _INTERNAL and name not in loose]
    # Of a single name it would take the value, without a tuple around it.
    return itemgetter("training", *(names or ["_modules"]))


def _hooks(part: nn.Module) -> Iterator[dict[Any, Any]]:
    yield part._forward_hooks
    yield part._forward_pre_hooks


def _holders(part: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the dicts in which a module has tensors."""
    for holder in (part._parameters, part._buffers):
        if holder:
            yield holder


def _loose_names(attributes: dict[str, Any]) -> list[str]:
    """Name the attributes that are tensors."""
    items = attributes.items()
    return [name for name, x in items if name not in _INTERNAL and isinstance(x, torch.Tensor)]


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Count what a fused optimizer has written to, as the others do themselves."""
    groups = [group["params"] for group in optimizer.param_groups if group.get("fused")]
    increment_version([x for x in chain.from_iterable(groups) if not x.is_inference()])


register_optimizer_step_post_hook(_after_step)
