"""How much structure a request in JSON needs, counted in its bytes before it is parsed.

A list or an object takes some 60 bytes of memory for 3 bytes of text, and the parser holds the
interpreter's lock until it is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fusewire.errors import RequestError
from fusewire.runtime.program import ProgramPort

# For names, parameters and ids, beside what tensors need.
_OTHER = 256
# For each input and output of the model.
_EACH = 64


class JsonStructure:
    """The most brackets, braces and quotes of a request for the inputs of one model."""

    def __init__(self, inputs: Sequence[ProgramPort], outputs: int) -> None:
        self._other = _OTHER + _EACH * (len(inputs) + outputs)
        self._has_text = any(port.dtype == "string" for port in inputs)
        # Lists for each element, where dims that are not known are 1.
        self._lists = max((_lists_per_element(port.shape) for port in inputs), default=0.0)
        counts = [math.prod(d if isinstance(d, int) else math.inf for d in p.shape) for p in inputs]
        self._elements = sum(counts)

    def is_plain(self, raw: bytes) -> bool:
        """Tell whether a request has no more structure than it needs, and so is parsed quickly.

        Texts may contain all of it. RequestError if the request has no texts, and has more.
        """
        commas = _count(raw, b",")
        elements = min(commas + 1, self._elements)
        limits = {
            b",": self._elements + self._other,
            b"[": self._lists * elements + self._other,
            b"{": self._other,
            b'"': 2 * self._other + (2 * elements if self._has_text else 0),
        }
        for sign, most in limits.items():
            if (found := commas if sign == b"," else _count(raw, sign)) > most:
                if self._has_text:
                    return False
                raise RequestError(
                    f"The JSON part has {sign.decode()} {found} times; a request for the inputs "
                    f"of the model needs it {int(most)} times at most."
                )
        return True


def _lists_per_element(shape: Sequence[object]) -> float:
    """Count the innermost lists of a nested tensor, and those around them, for one element."""
    dims = [dim if isinstance(dim, int) and dim else 1 for dim in shape]
    return sum(1 / math.prod(dims[place:]) for place in range(1, len(dims)))


def _count(raw: bytes, sign: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) == ord(sign)))
