"""The JSON part of a request: parsed, and checked against the inputs and outputs of a model.

What is large is parsed in a child (``json_reader``), which takes the tensors out of it; what is
left is read here like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.errors import RequestError
from fusewire.ir.graph import Array
from fusewire.serve.binding import BoundForm, TensorForm
from fusewire.serve.datatypes import read_listed, read_raw

if TYPE_CHECKING:
    from fusewire.serve.model import LoadedModel

# Beyond any size of a dim or of a tensor: JSON has numbers of any length.
_LONGEST = 1 << 40


@dataclass(frozen=True, eq=False)
class RequestHeader:
    """The JSON part of a request, checked against a loaded model.

    ``starts`` are where binary tensors begin behind it; None where ``data`` has a list instead, or
    the bytes that a child made of one. ``outputs`` are positions of the outputs to send, and
    whether as binary.
    """

    form: BoundForm
    starts: tuple[int | None, ...]
    sizes: tuple[int, ...]
    data: tuple[Any, ...]
    outputs: tuple[tuple[int, bool], ...]
    id: str | None
    timeout: float | None
    # How many bytes follow the JSON part.
    rest: int

    def without_lists(self) -> RequestHeader:
        """Release lists of numbers, which take many times the memory of the tensors."""
        return replace(self, data=())

    def arrays(self, body: bytes | memoryview, start: int) -> list[Array]:
        """Make the inputs of the model; binary ones are views of the body."""
        form, view = self.form, memoryview(body)
        arrays = []
        for place, at in enumerate(self.starts):
            of, shape, count = form.dtypes[place], form.shapes[place], form.counts[place]
            data = self.data[place]
            if at is not None:
                begin = start + at
                arrays.append(read_raw(view[begin : begin + self.sizes[place]], of, shape, count))
            elif isinstance(data, np.ndarray):
                arrays.append(read_raw(data.data, of, shape, count))
            else:
                arrays.append(read_listed(data, of, shape, count, f"input {place}"))
        return form.arranged(arrays)


def read_header(
    loaded: LoadedModel, raw: bytes, most_inputs: int, listed: Mapping[int, Array] = {}
) -> RequestHeader:
    """Read and check it; ``listed`` are bytes of tensors that a child took out of it, by place."""
    said = parse_json(raw)
    inputs = inputs_of(said, most_inputs)
    forms = tuple(form_of(item) for item in inputs)
    form = loaded.binder.bind(forms)
    starts: list[int | None] = []
    sizes: list[int] = []
    data: list[Any] = []
    at = 0
    for place, (item, size) in enumerate(zip(inputs, form.sizes, strict=True)):
        sent = binary_size(item)
        starts.append(None if sent is None else at)
        sizes.append(0 if sent is None else _checked_size(sent, size, forms[place].name))
        at += sizes[-1]
        taken = listed.get(place)
        if taken is not None:
            _checked_size(taken.nbytes, size, forms[place].name)
        data.append(field_of(item, "data", list, None) if taken is None else taken)
    about = field_of(said, "parameters", dict, {})
    return RequestHeader(
        form,
        tuple(starts),
        tuple(sizes),
        tuple(data),
        _outputs(said, about, loaded),
        field_of(said, "id", str, None),
        timeout_of(about.get("timeout")),
        at,
    )


def parse_json(raw: bytes) -> Any:
    """Parse the JSON part of a request; RequestError if it is not JSON."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The header is not JSON: {str(error)[:200]}.") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON; send the tensor as binary data")


def inputs_of(said: Any, most: int) -> list[Any]:
    """Return the list of inputs of a request, which has one at least."""
    inputs: list[Any] | None = field_of(said, "inputs", list, None)
    if not inputs or len(inputs) > most:
        raise RequestError(f"A request needs a list of inputs, at most {most}.")
    return inputs


def field_of(said: Any, name: str, kind: type, default: Any) -> Any:
    """Return a field of an object; RequestError if it has another kind."""
    if not isinstance(said, dict):
        raise RequestError(f"An object was expected, found a {type(said).__name__}.")
    value = said.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise RequestError(f"{name} is a {type(value).__name__}, not a {kind.__name__}.")
    return value


def form_of(item: Any) -> TensorForm:
    """Read what a request says about one of its tensors."""
    shape = field_of(item, "shape", list, None)
    is_shape = shape is not None and all(type(x) is int and 0 <= x < _LONGEST for x in shape)
    if not is_shape or len(shape) > 64:
        raise RequestError("The shape of an input is a list of sizes.")
    name, datatype = field_of(item, "name", str, ""), field_of(item, "datatype", str, "")
    return TensorForm(name, datatype, tuple(shape))


def binary_size(item: Any) -> Any:
    """Return how many bytes of an input follow the JSON part; None if ``data`` lists it."""
    return field_of(item, "parameters", dict, {}).get("binary_data_size")


def _checked_size(sent: Any, size: int | None, name: str) -> int:
    if type(sent) is not int or not 0 <= sent < _LONGEST or (size is not None and sent != size):
        wanted = "a size" if size is None else size
        raise RequestError(f"The input {name} has binary_data_size {sent!r:.40}, not {wanted}.")
    return sent


def timeout_of(value: Any) -> float | None:
    """Read a timeout in microseconds, as clients of Triton send it."""
    if value is None:
        return None
    if type(value) is not int or not 0 < value < 1 << 64:
        raise RequestError(f"timeout {value!r:.40} is not a number of microseconds.")
    return value / 1e6


def _outputs(
    said: Any, about: Mapping[str, Any], loaded: LoadedModel
) -> tuple[tuple[int, bool], ...]:
    is_binary = about.get("binary_data_output", False) is True
    names: Sequence[str] = loaded.names
    wanted = field_of(said, "outputs", list, None)
    if not wanted:
        return tuple((place, is_binary) for place in range(len(names)))
    if len(wanted) > len(names):
        raise RequestError(f"{len(wanted)} outputs were asked for; there are {len(names)}.")
    places = []
    for item in wanted:
        name = field_of(item, "name", str, "")
        if name not in names:
            shown = ", ".join(names)
            raise RequestError(f"There is no output {name!r:.80}. The outputs are {shown}.")
        own = field_of(item, "parameters", dict, {})
        if "classification" in own:
            raise RequestError("Classification of outputs is not served.")
        binary = own.get("binary_data", is_binary)
        places.append((names.index(name), binary is True))
    return tuple(places)
