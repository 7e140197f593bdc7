"""The child that parses large requests in JSON: it takes the tensors out of them, as bytes.

It runs one at a time, within the limits of its parent, closed like the children of engines. Most of
what a request takes when it is parsed are its lists, and these do not leave this process.
"""

from __future__ import annotations

import gc
import json
import math
import os
from typing import Any

import numpy as np

from fusewire.errors import RequestError, RequestTooLarge
from fusewire.process.closed import finish
from fusewire.process.frames import VERSION, Blobs, Frame, Incoming, Outgoing
from fusewire.process.lifeline import watch
from fusewire.process.worker import away, settle
from fusewire.serve.datatypes import DATATYPES, read_listed, write_raw
from fusewire.serve.header import binary_size, form_of, inputs_of, parse_json
from fusewire.system.processes import resident

# What a request may have besides its tensors: the parent parses it again.
REST_BYTES = 64 << 10
# The parent is trusted.
_ANY_SIZE = 1 << 62


def taken_apart(raw: bytes, most_inputs: int) -> tuple[bytes, dict[int, bytes]]:
    """Return a request without the tensors that it lists, and their bytes by place.

    RequestError if they are not what the request says.
    """
    said = parse_json(raw)
    tensors: dict[int, bytes] = {}
    for place, item in enumerate(inputs_of(said, most_inputs)):
        form = form_of(item)
        data, of = item.pop("data", None), DATATYPES.get(form.datatype)
        # The parent refuses other datatypes.
        if binary_size(item) is None and of is not None:
            count = math.prod(form.shape)
            array = read_listed(data, of, (count,), count, f"input {place}")
            tensors[place] = write_raw(array)
    try:
        rest = json.dumps(said).encode()
    except RecursionError:
        raise RequestError("The header is not JSON that can be read: it is too deep.") from None
    if len(rest) > REST_BYTES:
        raise RequestTooLarge(
            f"The JSON part has {len(rest)} bytes besides tensors; the limit is {REST_BYTES}."
        )
    return rest, tensors


def _answer(header: dict[str, Any], blobs: Blobs) -> Frame:
    job = header["job"]
    try:
        rest, tensors = taken_apart(blobs.pop().tobytes(), header["inputs"])
    except RequestError as error:
        return Frame({"job": job, "error": [type(error).__name__, str(error)]}, [])
    parts = [np.frombuffer(part, np.uint8) for part in (rest, *tensors.values())]
    return Frame({"job": job, "places": list(tensors)}, parts)


def main(name: str, requests: int, replies: int, life: int) -> None:
    """Serve until the parent is gone."""
    settle()
    watch(away(life))
    finish()
    # Nothing that is parsed refers to itself, and looking for that takes most of the time.
    gc.disable()
    incoming, replies = Incoming(away(requests), _ANY_SIZE), away(replies)
    Outgoing(replies, Frame({"hello": VERSION}, [])).write()
    while True:
        try:
            frame = incoming.read()
        except EOFError:
            os._exit(0)
        if frame is not None:
            begun = {"phase": "run", "name": name, "resident": resident(os.getpid())}
            Outgoing(replies, Frame(begun, [])).write()
            Outgoing(replies, _answer(frame.header, frame.blobs)).write()
            del frame
