"""Requests against the inputs of a model: what their tensors must be, and who can share a batch.

Clients send the same names, datatypes and shapes again and again, so that what was checked once is
kept by the words of the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fusewire.dtypes import DType
from fusewire.errors import RequestError, RequestTooLarge
from fusewire.ir.graph import Array
from fusewire.serve.datatypes import DATATYPES, datatype_of
from fusewire.serve.limits import ServeLimits

if TYPE_CHECKING:
    # Children that parse requests need neither.
    from fusewire.planning.rows import RowProof
    from fusewire.program.program import ProgramPort

# Forms of requests that a model remembers.
_KNOWN = 256
# Inputs that all requests of a batch share are compared by their bytes, if they have no more.
_SHARED_BYTES = 4096


class TensorForm(NamedTuple):
    """What a request says about one of its tensors."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BoundForm:
    """Checked forms of the tensors of a request, in the order in which they were sent.

    ``places`` are the positions of the model's inputs; ``sizes`` are bytes, None for strings.
    ``rows`` is how many the request adds to a batch; None if it cannot share one.
    """

    places: tuple[int, ...]
    dtypes: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    sizes: tuple[int | None, ...]
    rows: int | None
    # What requests of one batch have in common, unless inputs are shared.
    key: Any
    model: Binder

    def arranged(self, arrays: Sequence[Array]) -> list[Array]:
        """Put arrays in the order of the model's inputs."""
        ordered: list[Any] = [None] * len(arrays)
        for place, array in zip(self.places, arrays, strict=True):
            ordered[place] = array
        return ordered


class Binder:
    """Checks requests against the inputs of one model."""

    def __init__(self, ports: Sequence[ProgramPort], proof: RowProof, limits: ServeLimits) -> None:
        self._ports = ports
        self._proof = proof
        self._limits = limits
        self._places = {port.name: place for place, port in enumerate(ports)}
        self._known: dict[tuple[TensorForm, ...], BoundForm] = {}
        self._shared = [place for place, axis in enumerate(proof.inputs) if axis is None]

    def bind(self, forms: tuple[TensorForm, ...]) -> BoundForm:
        """Check what a request says about its tensors; RequestError says what is wrong."""
        found = self._known.get(forms)
        if found is None:
            found = self._bound(forms)
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[forms] = found
        return found

    def has(self, form: BoundForm) -> bool:
        """Tell whether a request was checked against the inputs of this model."""
        return form.model is self

    def _bound(self, forms: tuple[TensorForm, ...]) -> BoundForm:
        names = [form.name for form in forms]
        wanted = ", ".join(map(str, self._ports))
        if len(set(names)) != len(names) or set(names) != self._places.keys():
            raise RequestError(f"The inputs are {names[:16]}; the model takes {wanted}.")
        dtypes, counts, sizes = [], [], []
        for form in forms:
            port = self._ports[self._places[form.name]]
            of = self._checked(form, port)
            count = math.prod(form.shape)
            # A tensor without elements may have a large size beside the 0, and so make others.
            room = math.prod(max(dim, 1) for dim in form.shape) * max(of.itemsize, 1)
            if room > self._limits.body_bytes:
                raise RequestTooLarge(
                    f"The input {form.name} is {list(form.shape)}; a request may have "
                    f"{self._limits.body_bytes} bytes."
                )
            dtypes.append(of)
            counts.append(count)
            sizes.append(None if of.name == "string" else count * of.itemsize)
        rows = self._rows(forms)
        return BoundForm(
            tuple(self._places[name] for name in names),
            tuple(dtypes),
            tuple(form.shape for form in forms),
            tuple(counts),
            tuple(sizes),
            rows,
            None if rows is None else self._key(forms),
            self,
        )

    def _checked(self, form: TensorForm, port: ProgramPort) -> DType:
        of = DATATYPES.get(form.datatype)
        if of is None or of.name != port.dtype:
            raise RequestError(
                f"The input {port.name} is {datatype_of(port.dtype)}, not {form.datatype[:40]}."
            )
        if len(form.shape) > self._limits.rank:
            raise RequestTooLarge(f"The input {port.name} has {len(form.shape)} dims.")
        fits = len(form.shape) == len(port.shape) and all(
            found == dim if isinstance(dim, int) else found >= 0
            for found, dim in zip(form.shape, port.shape, strict=False)
        )
        if not fits:
            raise RequestError(f"The input {port} was sent as {list(form.shape)}.")
        return of

    def _rows(self, forms: tuple[TensorForm, ...]) -> int | None:
        """Count the rows that a request adds to a batch."""
        if not self._proof.is_proven:
            return None
        counts = set()
        for form in forms:
            axis = self._proof.inputs[self._places[form.name]]
            if axis is not None:
                counts.add(form.shape[axis])
        # The proof holds for one number of rows, and a batch of none has no answers to give.
        return counts.pop() if len(counts) == 1 and 0 not in counts else None

    def _key(self, forms: tuple[TensorForm, ...]) -> Any:
        """Leave the number of rows out of the shapes."""
        shapes: list[Any] = [None] * len(forms)
        for form in forms:
            place = self._places[form.name]
            axis = self._proof.inputs[place]
            kept = form.shape if axis is None else form.shape[:axis] + form.shape[axis + 1 :]
            shapes[place] = kept
        return tuple(shapes)

    def batch_key(self, form: BoundForm, arrays: Sequence[Array]) -> Any:
        """Return what requests of one batch have in common; None if this one must run alone."""
        if not self._shared or form.rows is None:
            return form.key
        shared: list[bytes] = []
        for place in self._shared:
            array = arrays[place]
            if array.dtype == object or array.nbytes > _SHARED_BYTES:
                return None
            shared.append(array.tobytes())
        return (form.key, *shared)
