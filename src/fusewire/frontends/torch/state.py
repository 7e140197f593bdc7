"""The state of a module: its tensors, parts and modes, noted so that a change is seen at a call.

A check before every call must take well under a microsecond for each parameter, so it goes through
lists in C. It notices tensors that were written to (their versions), replaced or moved (their
memory), parts that were replaced, and modes of training. Attributes that are not tensors or
modules were constants when the module was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, final

import torch
from torch import nn

from fusewire.contract.calling import StateGuard

_version = attrgetter("_version")
_training = itemgetter("training")
_data_ptr = torch.Tensor.data_ptr
_values = dict.values


@final
class ModuleState(StateGuard):
    """The state of a module when this was made."""

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.modules())
        self._attributes = [part.__dict__ for part in parts]
        # Empty ones are left out: what is registered later is not used by what was read.
        self._children = [part._modules for part in parts if part._modules]
        self._tensors = [holder for part in parts for holder in _holders(part)]
        # Tensors that are plain attributes, and not registered.
        self._loose = [(x, name) for x in self._attributes for name in _loose_names(x)]
        self._modules = list(chain.from_iterable(map(_values, self._children)))
        self._flags = list(map(_training, self._attributes))
        # A parameter that was left out is None.
        self._has_gaps = any(x is None for holder in self._tensors for x in holder.values())
        tensors = self._now()
        # Tensors made in inference mode have no versions.
        self._has_versions = not any(tensor.is_inference() for tensor in tensors)
        self._pointers = list(map(_data_ptr, tensors))
        self._versions = list(map(_version, tensors)) if self._has_versions else []

    def _now(self) -> list[torch.Tensor]:
        tensors = list(chain.from_iterable(map(_values, self._tensors)))
        if self._has_gaps:
            tensors = [tensor for tensor in tensors if tensor is not None]
        if self._loose:
            tensors += [attributes[name] for attributes, name in self._loose]
        return tensors

    def holds(self) -> bool:
        """Return whether the module is as it was."""
        return self._has_flags() and self._has_tensors()

    def is_passing(self) -> bool:
        """Return whether only modes differ."""
        return not self._has_flags() and self._has_tensors()

    def _has_flags(self) -> bool:
        return list(map(_training, self._attributes)) == self._flags

    def _has_tensors(self) -> bool:
        if list(chain.from_iterable(map(_values, self._children))) != self._modules:
            return False
        try:
            tensors = self._now()
            if list(map(_data_ptr, tensors)) != self._pointers:
                return False
            return not self._has_versions or list(map(_version, tensors)) == self._versions
        except (TypeError, KeyError, RuntimeError):
            # Something else is in the place of a tensor, or one without memory or version.
            return False


def _holders(part: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the dicts in which a module has tensors."""
    for holder in (part._parameters, part._buffers):
        if holder:
            yield holder


def _loose_names(attributes: dict[str, Any]) -> list[str]:
    """Name the attributes that are tensors."""
    return [name for name, value in attributes.items() if isinstance(value, torch.Tensor)]
