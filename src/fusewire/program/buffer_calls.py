"""Calls with buffers: taken and returned where they are, written to, and given away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fusewire.contract.backend import Held, Into
from fusewire.contract.buffer import Buffer, HostBuffer, PartBuffer, StateBuffer, held_still
from fusewire.contract.frontend import Structure
from fusewire.errors import OptionsError, ShapeMismatchError
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.plan.execute import PlanRunner
from fusewire.plan.transfer import fetched
from fusewire.program.arguments import plain
from fusewire.program.parameters import Parameters
from fusewire.program.updates import may_write, wishes

if TYPE_CHECKING:
    from fusewire.program.entry import Entry, Run

# What a call may be told besides its arguments, unless it has arguments of these names.
WORDS = frozenset(("out", "donate", "outputs"))
_PLACES = ("host", "device")


def directed(
    named: Mapping[str, Any], parameters: Parameters
) -> tuple[Directions | None, dict[str, Any]]:
    """Take what a call is told besides its arguments out of those by name."""
    rest = dict(named)
    own = [name for name in rest if name in WORDS and not parameters.has(name)]
    said = {name: rest.pop(name) for name in own}
    if not said:
        return None, rest
    outputs, donate = said.get("outputs"), said.get("donate", ())
    if outputs not in (None, *_PLACES):
        raise OptionsError(f'outputs={outputs!r} is not known. Give "host" or "device".')
    names = (donate,) if isinstance(donate, str | int) else tuple(donate)
    return Directions(said.get("out"), names, outputs), rest


@final
@dataclass(frozen=True)
class Directions:
    """What a call writes to, what it may have, and where its results stay.

    ``out`` has the structure of the results; ``donate`` has names or places of inputs.
    """

    out: Any
    donate: tuple[str | int, ...]
    outputs: str | None

    def run(self, entry: Entry, arguments: tuple[Any, ...]) -> list[Any]:
        """Run an entry; returns a flat list of outputs."""
        leaves = entry.arguments.flatten(arguments)
        donated = [_donated(entry, leaves, name) for name in self.donate]
        targets = [] if self.out is None else _targets(entry, self.out)
        into = [] if _overlap(targets, leaves) else list(map(_memory, targets))
        results = _results(entry, leaves, into)
        if targets:
            _write(entry, targets, into, results)
        for buffer in donated:
            if all(buffer is not target for target in targets):
                buffer.close()
        if targets:
            return targets
        is_asked = any(isinstance(leaf, Buffer) for leaf in leaves)
        if self.outputs == "device" or (self.outputs is None and is_asked):
            return [as_buffer(x) for x in results]
        return [fetched(x) for x in results]


def buffer_run(entry: Entry) -> Run:
    """Return what runs an entry on arguments of which some are buffers, and returns buffers."""
    flatten = entry.arguments.flatten

    def call(arguments: tuple[Any, ...]) -> list[Any]:
        return [as_buffer(x) for x in _results(entry, flatten(arguments), ())]

    return call


def state_updates(entry: Entry, leaves: Sequence[Any]) -> list[tuple[int, int]]:
    """Pair the states among arguments with the outputs that replace them."""
    pairs, names = [], entry.results.names
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, StateBuffer):
            continue
        name = entry.inputs[place].name if leaf.output is None else leaf.output
        output = names.index(name) if name in names else name
        if not isinstance(output, int) or not 0 <= output < len(names):
            raise OptionsError(
                f"The input {entry.inputs[place].name} is a state, and no result is called "
                f"{name!r}: {', '.join(names)}. Say which one replaces it: fw.state(x, output=...)."
            )
        value = entry.graph.outputs[output]
        if value.type != entry.inputs[place].type:
            raise ShapeMismatchError(
                f"The state {entry.inputs[place].name} is {entry.inputs[place].type}, and the "
                f"result {names[output]} that replaces it is {value.type}."
            )
        pairs.append((output, place))
    return pairs


def as_buffer(value: Held) -> Any:
    """Hold an array of the host as a buffer; other values that are no tensors stay as they are."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return HostBuffer.of(value)
    return value


def _results(entry: Entry, leaves: Sequence[Any], into: Into) -> list[Any]:
    """Run, one call of a state at a time; the results are where the engine left them."""
    states = [leaf for leaf in leaves if isinstance(leaf, StateBuffer)]
    if len({id(state) for state in states}) < len(states):
        raise OptionsError(
            "One state was given for two inputs, and a call would replace it twice. Make a state "
            "for each: fw.state(x)."
        )
    with held_still(*(leaf for leaf in leaves if isinstance(leaf, Buffer))):
        return _replaced(entry, leaves, into)


def _replaced(entry: Entry, leaves: Sequence[Any], into: Into) -> list[Any]:
    """Run, and replace states."""
    inputs = [_taken(*pair) for pair in zip(entry.inputs, leaves, strict=True)]
    runner, updates = entry.runner, entry.updates
    if isinstance(runner, PlanRunner):
        if updates:
            into = _wishes(entry, inputs, into)
        results = runner.run(inputs, into, keeps_buffers=True)
    else:
        # What answers until engines are compared, or watches them, takes arrays of the host.
        results = runner.call([fetched(x) for x in inputs])
    for output, place in updates:
        if results[output] is not inputs[place]:
            _replace(leaves[place], results[output])
        results[output] = leaves[place]
    return results


def _wishes(entry: Entry, inputs: Sequence[Held], into: Into) -> Into:
    """Say where outputs may go: those that replace a state, over it or nowhere.

    In memory of the caller's, such an output would be the state from then on.
    """
    places: dict[int, int | None] = {output: None for output, _ in entry.updates}
    if may_write(entry.in_place, inputs):
        places |= dict(entry.in_place)
    return wishes(len(entry.results.names), places, into)


def _replace(state: Any, result: Held) -> None:
    """Put a result in the place of a state: by a copy only where its memory must stay."""
    if isinstance(state, StateBuffer):
        new = as_buffer(result)
        if new.device != state.device:
            # A fallback answered on the host, and the state goes back to its device.
            from fusewire.buffers.buffers import asarray

            new = asarray(new, device=state.device)
        state.replace(new)
    elif isinstance(state, Buffer):
        state.copy_from(result)
    else:
        np.copyto(state, fetched(result))


def _taken(value: Value, leaf: Any) -> Held:
    """Return what an engine takes for an argument: the memory of a buffer as it is."""
    if not isinstance(leaf, Buffer):
        return plain(value, leaf)
    leaf.require_open()
    if isinstance(leaf, StateBuffer):
        leaf = leaf.held
    if isinstance(leaf, PartBuffer):
        # Of the memory that a state has now: another thread of this call could not wait for it.
        whole, start = leaf.root()
        leaf = whole.part(start, leaf.type)
    if isinstance(leaf, HostBuffer):
        return plain(value, leaf.array)
    is_cast = isinstance(value.type, TensorType) and value.type.dtype is not leaf.type.dtype
    return plain(value, leaf.numpy()) if is_cast else leaf


def _donated(entry: Entry, leaves: Sequence[Any], name: str | int) -> Buffer:
    names = [str(value.name) for value in entry.inputs]
    place = names.index(name) if name in names else name
    if not isinstance(place, int) or not 0 <= place < len(leaves):
        raise OptionsError(f"donate={name!r} is no input. Inputs: {', '.join(names)}.")
    leaf = leaves[place]
    if not isinstance(leaf, Buffer):
        raise OptionsError(
            f"donate={name!r}: the input is a {type(leaf).__name__}, and only buffers can be "
            "given away. Give fw.asarray(x)."
        )
    if isinstance(leaf, StateBuffer) or leaf.is_part:
        what = "a state" if isinstance(leaf, StateBuffer) else "a part of another buffer"
        raise OptionsError(
            f"donate={name!r}: the input is {what}, whose memory the call cannot have. Leave it "
            "out, or donate a copy: fw.asarray(x, copy=True)."
        )
    return leaf


def _targets(entry: Entry, out: Any) -> list[Any]:
    """List what the results are written to; each is an array or a buffer."""
    count = len(entry.results.names)
    _, targets = Structure.of(out, lambda item: isinstance(item, Buffer | np.ndarray))
    if len(targets) != count:
        raise ShapeMismatchError(
            f"out= has {len(targets)} arrays or buffers, and the program has {count} results: "
            f"{', '.join(entry.results.names)}."
        )
    for name, value, target in zip(entry.results.names, entry.graph.outputs, targets, strict=False):
        if isinstance(target, Buffer):
            target.require_open()
        elif not target.flags.writeable:
            raise ShapeMismatchError(f"out= for {name} is an array that cannot be written to.")
        _check(name, value.type, target)
    return targets


def _check(name: str, wanted: Any, target: Any) -> None:
    """Compare what is known before a run: the dtype, and the sizes that are fixed."""
    assert isinstance(wanted, TensorType), "a target has a tensor"
    sizes = [dim if isinstance(dim, int) else size for dim, size in _pairs(wanted, target)]
    is_same = len(wanted.shape) == len(target.shape) and list(target.shape) == sizes
    if not is_same or target.dtype != wanted.dtype.numpy:
        raise ShapeMismatchError(
            f"The result {name} is {wanted}, and out= has {target.dtype}{list(target.shape)}."
        )


def _pairs(wanted: TensorType, target: Any) -> list[tuple[Any, int]]:
    return list(zip(wanted.shape, target.shape, strict=False))


def _memory(target: Any) -> Any:
    return target.array if isinstance(target, HostBuffer) else target


def _overlap(targets: Sequence[Any], leaves: Sequence[Any]) -> bool:
    """Tell whether some result would be written over an input that is still read."""
    return any(_shares(target, leaf) for target in targets for leaf in leaves)


def _shares(one: Any, other: Any) -> bool:
    # A state, or a part, lies in memory of another.
    one, other = (_memory(x.root()[0] if isinstance(x, Buffer) else x) for x in (one, other))
    if isinstance(one, Buffer) and isinstance(other, Buffer):
        return one is other
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return arrays and np.may_share_memory(one, other)


def _write(
    entry: Entry, targets: Sequence[Any], into: Sequence[Any], results: Sequence[Any]
) -> None:
    """Copy results that the engine did not write where they belong; all are checked before."""
    pairs = list(zip(targets, into or targets, results, strict=True))
    for name, (target, memory, result) in zip(entry.results.names, pairs, strict=True):
        if result is not memory and tuple(result.shape) != tuple(target.shape):
            raise ShapeMismatchError(
                f"The result {name} has the shape {list(result.shape)}, and out= has "
                f"{list(target.shape)}."
            )
    for target, memory, result in pairs:
        if result is memory:
            continue
        if isinstance(target, Buffer):
            target.copy_from(result)
        else:
            np.copyto(target, fetched(result))
