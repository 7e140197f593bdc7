"""A module for one structure of arguments, as a function of flat tensors and as one of flat arrays.

Tracing writes to attributes of modules, and the module may be running in another thread: a forked
process traces it, or where there is none, this one traces a copy that shares all its tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from torch import Tensor, nn, strided

from fusewire.contract.calling import Arguments, Named
from fusewire.contract.frontend import Limits
from fusewire.errors import EngineError, TraceError
from fusewire.frontends.torch.apart import ForkedReader, can_read_apart
from fusewire.frontends.torch.arrays import call_array, result_tensor
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.frontends.torch.state import ModuleState
from fusewire.frontends.torch.tensors import tensor_from
from fusewire.frontends.torch.trees import Tree
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType
from fusewire.process.guard import guarded


@final
class ModuleCall:
    """Calls a module with tensors put into one structure.

    ``infer`` calls it as programs do, and ``key`` is what they ask of every call.
    """

    def __init__(
        self,
        module: nn.Module,
        tree: Tree,
        infer: Callable[[Arguments, Named], Any],
        key: Callable[[Arguments, Named], Hashable],
        exported: Any = None,
    ) -> None:
        self._module, self._tree, self._infer, self._key = module, tree, infer, key
        self._exported = exported
        self._results: Results | None = None
        # The places of tensors that it writes to, once it was read.
        self._updated: list[int] = []
        # Where the tensors of the module lay when it was read.
        self.memory: frozenset[int | None] = frozenset()
        self._guard: ModuleState | None = None
        # A result, to see what it takes to make one of arrays.
        self._spare: Any = None

    @property
    def updated(self) -> Sequence[int]:
        """The places of tensors that it writes to, once it was read."""
        return self._updated

    def flat(self) -> FlatCall:
        """Return what a frontend reads, of the module as it is now."""
        if self._exported is not None and self._exported.call_spec.in_spec != self._tree.spec:
            raise TraceError(
                "The program was exported for arguments of another structure: "
                f"{self._exported.call_spec.in_spec}."
            )
        names = tuple(map(_input_name, self._tree.names()))
        label, read = type(self._module).__name__, None
        if can_read_apart():
            module, read = (
                self._module,
                ForkedReader(tensors_of(self._module), self._read_copy).graph,
            )
        else:
            module = sharing_copy(self._module)
        function = partial(self.on_tensors, module)
        flat = FlatCall(
            function,
            module,
            names,
            label=label,
            exported=self._exported,
            run=self.on_arrays,
            burden=self.burden,
            read=read,
        )
        self._updated = flat.updated
        self.memory = frozenset(map(_memory, tensors_of(self._module)))
        return flat

    def _read_copy(self, call: FlatCall, types: Sequence[TensorType], limits: Limits) -> Graph:
        """Read a copy of the module, in this process."""
        from fusewire.frontends.torch.convert import converted

        module = sharing_copy(self._module)
        return converted(
            replace(call, function=partial(self.on_tensors, module), module=module), types, limits
        )

    def on_tensors(self, module: nn.Module, *tensors: Any) -> list[Any]:
        """Call the module, or a copy of it."""
        arguments, named = self._tree.restore(tensors)
        return Tree.of(module(*arguments, **named))[1]

    def on_arrays(self, *arrays: Any) -> Any:
        """Call the module itself."""
        arguments, named = self._tree.restore([tensor_from(array) for array in arrays])
        results = [call_array(tensor) for tensor in Tree.of(self._infer(arguments, named))[1]]
        return results[0] if len(results) == 1 else tuple(results)

    def burden(self, arrays: Sequence[Any]) -> None:
        """Do what a call that an engine answers takes besides, and all that ``on_arrays`` adds.

        A call that the module answers has none of it.
        """
        arguments, named = self._tree.restore([tensor_from(array) for array in arrays])
        if self._guard is None:
            self._guard = ModuleState(self._module)
            copies = [tensor_from(array).clone() for array in arrays]
            self._spare = self._infer(*self._tree.restore(copies))
        self._key(arguments, named)
        self._guard.holds()
        for tensor in Tree.of((arguments, named))[1]:
            call_array(tensor)
        tree, tensors = Tree.of(self._spare)
        tree.restore([result_tensor(call_array(tensor)) for tensor in tensors])

    def note(self, arguments: Arguments, named: Named, result: Any) -> None:
        """Note the structure of what the module returned for such arguments."""
        self._results = Results(self._module, Tree.of((arguments, named))[1], result)

    def results(self, arguments: Arguments, named: Named) -> Results:
        """Return the structure of what the module returns for such arguments."""
        if self._results is None or self._results.tree.has_numbers:
            if self._updated:
                # The call itself is still to come.
                copies = [tensor.clone() for tensor in Tree.of((arguments, named))[1]]
                arguments, named = self._tree.restore(copies)
            self.note(arguments, named, self._infer(arguments, named))
            assert self._results is not None
        return self._results


@final
class Results:
    """What a module returned: its structure, and which tensors of it were there before the call.

    ``same`` has, by the place of such a tensor, its place among the arguments; ``kept`` has the
    parameters of the module that it returns. ``problem`` says why an engine cannot return the same.
    """

    def __init__(self, module: nn.Module, arguments: Sequence[Any], result: Any) -> None:
        self.tree, tensors = Tree.of(result)
        given = {id(tensor): place for place, tensor in enumerate(arguments)}
        owned = {id(tensor): tensor for tensor in tensors_of(module)}
        places = range(len(tensors))
        self.same = {x: given[id(tensors[x])] for x in places if id(tensors[x]) in given}
        self.kept = {x: owned[id(tensors[x])] for x in places if id(tensors[x]) in owned}
        memory = {_memory(tensor): "an argument" for tensor in arguments}
        memory |= {_memory(tensor): "a parameter" for tensor in owned.values()}
        others = [tensors[x] for x in places if x not in self.same and x not in self.kept]
        shared = next((_memory(x) for x in others if x.numel() and _memory(x) in memory), None)
        self.problem: str | None = None
        if shared is not None:
            self.problem = f"An output is a view of {memory[shared]}, not a tensor of its own."

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor by itself, and a new one."""
        return self.tree.is_tensor and not self.same and not self.kept

    @property
    def row(self) -> type[tuple[Any, ...]] | type[list[Any]] | None:
        """``tuple`` or ``list`` if it is a plain one of new tensors, or None."""
        return None if self.same or self.kept else self.tree.row

    def restore(self, tensors: Sequence[Any], arguments: Callable[[], Sequence[Any]]) -> Any:
        """Put tensors into the structure, and the arguments and parameters that belong there."""
        if self.same or self.kept:
            given, tensors = arguments(), list(tensors)
            for place, argument in self.same.items():
                tensors[place] = given[argument]
            for place, parameter in self.kept.items():
                tensors[place] = parameter
        return self.tree.restore(tensors)


def _memory(tensor: Any) -> int | None:
    """Tell where the memory of a tensor begins; None if it has none of its own to share."""
    if not isinstance(tensor, Tensor) or tensor.layout is not strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr() or None


def tensors_of(module: nn.Module) -> list[Tensor]:
    """List the tensors of a module: parameters, buffers, and those that are plain attributes."""
    attributes = [value for part in module.modules() for value in vars(part).values()]
    loose = [value for value in attributes if isinstance(value, Tensor)]
    return [*module.parameters(), *module.buffers(), *loose]


def sharing_copy(module: nn.Module) -> nn.Module:
    """Copy a module and its parts, but none of its tensors."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors_of(module)}
    title = type(module).__name__
    try:
        # Parts of a module may have a __deepcopy__ that does anything.
        return guarded(title, "load", "a copy of it", copy.deepcopy, module, memo)
    except EngineError as error:
        raise TraceError(f"A {title} cannot be copied to be read. {error}") from error


def _input_name(path: str) -> str:
    """Name an argument after its place: "0.1" is the second by position, "1.mask" a keyword."""
    side, _, name = path.partition(".")
    return name if side == "1" and name else f"input{name.replace('.', '_')}"
