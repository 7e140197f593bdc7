"""Shared libraries of AOTInductor: taken out of the package it writes, and opened from memory.

A package is a ZIP archive of sources, notes and one shared library. Only the library is kept, so
that nothing else of an archive is ever looked at again; the constants stay outside of it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fusewire.errors import FormatError
from fusewire.ir.graph import Array

_ELF = b"\x7fELF"
# What a library and its notes may take, far above anything that was seen.
_MOST_BYTES = 1 << 30
_MARK = b"fusewire-aoti-1\n"
# Libraries that were opened.
_COUNT = itertools.count()


class Library(NamedTuple):
    """The code of a region, and the small constants that the compiler made for it, by name."""

    code: bytes
    constants: Mapping[str, Array]

    def written(self) -> bytes:
        """Write it as the payload of an artifact."""
        rows, blobs = {}, []
        for name, array in self.constants.items():
            blob = np.ascontiguousarray(array).tobytes()
            rows[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "size": len(blob)}
            blobs.append(blob)
        header = json.dumps({"code": len(self.code), "constants": rows}).encode()
        return b"".join([_MARK, len(header).to_bytes(8, "little"), header, self.code, *blobs])

    @staticmethod
    def read(payload: bytes) -> Library:
        """Read a payload; FormatError if it is anything else."""
        try:
            return _read(payload)
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"This is not a library of Inductor: {error}") from None


def _read(payload: bytes) -> Library:
    start = len(_MARK)
    if not payload.startswith(_MARK):
        raise ValueError("it does not begin as one.")
    size = int.from_bytes(payload[start : start + 8], "little")
    header = json.loads(payload[start + 8 : start + 8 + size])
    start += 8 + size
    code = payload[start : start + int(header["code"])]
    if not code.startswith(_ELF) or len(code) != header["code"]:
        raise ValueError("its code is not whole.")
    start += len(code)
    constants: dict[str, Array] = {}
    for name, row in header["constants"].items():
        blob = payload[start : start + int(row["size"])]
        start += len(blob)
        constants[str(name)] = np.frombuffer(blob, np.dtype(row["dtype"])).reshape(row["shape"])
    if start != len(payload):
        raise ValueError(f"it has {len(payload)} bytes, and {start} were expected.")
    return Library(code, constants)


def library_in(package: bytes) -> bytes:
    """Take the shared library out of a package; FormatError if there is not exactly one."""
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        members = [info for info in archive.infolist() if not info.is_dir()]
        for info in members:
            parts = info.filename.split("/")
            if info.filename.startswith("/") or ".." in parts or "\\" in info.filename:
                raise FormatError(f"The package of Inductor names {info.filename!r}.")
        libraries = [info for info in members if info.filename.endswith(".so")]
        if len(libraries) != 1 or libraries[0].file_size > _MOST_BYTES:
            found = ", ".join(info.filename for info in libraries) or "none"
            raise FormatError(f"A package of Inductor has one library; found {found}.")
        code = archive.read(libraries[0])
    if not code.startswith(_ELF):
        raise FormatError("The library in the package of Inductor is not one.")
    return code


@contextlib.contextmanager
def as_file(code: bytes) -> Iterator[str]:
    """Give the code a path to be opened by: in memory, where there is such a thing.

    Nobody else can change what is opened, and nothing is left behind. No two paths of a process
    are the same: the loader of shared libraries takes one that it has for one of the same path,
    and it may keep a library that nobody uses.
    """
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        descriptor = -1
        with contextlib.suppress(OSError):
            descriptor = os.memfd_create("fusewire-inductor", os.MFD_CLOEXEC)
        if descriptor >= 0:
            with os.fdopen(descriptor, "wb") as file:
                file.write(code)
                file.flush()
                yield f"/proc/self/fd{_spelled(next(_COUNT))}{file.fileno()}"
            return
    with tempfile.TemporaryDirectory(prefix="fusewire-") as folder:
        path = Path(folder) / "region.so"
        path.write_bytes(code)
        yield str(path)


def _spelled(number: int) -> str:
    """Write a number into a path by parts that lead nowhere; descriptors are used again."""
    return "".join("/./" if bit == "1" else "/" for bit in f"{number:b}") + "/"
