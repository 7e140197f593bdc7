"""Inductor behind the contract. One package is compiled, in a closed child, for half a minute."""

import ctypes
import io
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.backends.inductor.engine import InductorBackend
from fusewire.backends.inductor.library import Library, as_file, library_in
from fusewire.backends.inductor.refusal import refuses
from fusewire.contract.backend import Artifact, Config, Refusal
from fusewire.contract.region import first_device
from fusewire.dtypes import DType, bfloat16, complex64, float8_e4m3fn, float32, int64
from fusewire.errors import DimError, FormatError, OptionsError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.activation import gelu
from fusewire.ops.contraction import linear
from fusewire.ops.conversion import cast
from fusewire.ops.elementwise import add, negative
from fusewire.ops.indexing import nonzero
from fusewire.ops.interpret import interpret
from fusewire.ops.logic import equal
from fusewire.ops.movement import concat, reshape
from fusewire.ops.normalization import layer_norm
from fusewire.ops.resampling import resize
from fusewire.ops.slicing import pad
from fusewire.options import LONG_BUDGET
from fusewire.planning.policy import TargetFinder
from fusewire.process.isolate import Contact, first_contact
from fusewire.process.limits import ChildLimits
from fusewire.registry import REGISTRY

BACKEND = InductorBackend()
CPU = first_device(BACKEND)
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(64, 64)).astype(np.float32)
GIVEN = RNG.normal(size=(4, 64)).astype(np.float32)
BIAS = np.ones(64, np.float32)


def value(dtype: DType, *shape: Any, name: str = "x") -> Value:
    return Value(TensorType(dtype, shape), name)


def network() -> Graph:
    """A layer with weights; outputs that are an input, a view of one, in 16 bits, and resized.

    To resize is to take elements by an index that the step makes, here twice the same. What pads is
    left to the op, and given.
    """
    x = value(float32, 4, 64)
    y = layer_norm(gelu(linear(x, WEIGHT, BIAS)))
    moved = add(y, np.float32(0.5))
    square = reshape(y, shape=(1, 1, 16, 16))
    padded = pad(pad(y, padding=((0, 0), (2, 1))), np.float32(3), padding=((1, 0), (0, -1)))
    larger = resize(square, sizes=(1, 1, 32, 32), mode="nearest", coordinates="asymmetric")
    views = [y, x, reshape(x, shape=(256,)), cast(moved, dtype=bfloat16)]
    return Graph([x], [*views, larger, padded])


@pytest.fixture(scope="module")
def compiled() -> Contact:
    answer = first_contact(
        REGISTRY.meet("inductor").reference,
        network(),
        CPU,
        Config(),
        [GIVEN],
        ChildLimits(300.0),
    )
    assert isinstance(answer, Contact), answer
    return answer


def weights(artifact: Artifact) -> dict[str, Array]:
    held = {v.constant.digest: v.constant.array for v in network().constants if v.constant}
    return {slot.digest: held[slot.digest] for slot in artifact.slots if slot.digest is not None}


def test_region_is_compiled_and_run_in_closed_children(compiled: Contact) -> None:
    wanted = interpret(network(), [GIVEN])
    for found, right in zip(compiled.outputs, wanted, strict=True):
        assert found.dtype == right.dtype
        np.testing.assert_allclose(
            found.astype(np.float32), right.astype(np.float32), rtol=2e-2, atol=1e-5
        )
    np.testing.assert_allclose(compiled.outputs[0], wanted[0], rtol=1e-4, atol=1e-6)


def test_artifact_holds_no_weights(compiled: Contact) -> None:
    artifact = compiled.artifact
    assert artifact.kind == "native"
    assert WEIGHT.tobytes()[:256] not in artifact.payload
    assert {slot.role for slot in artifact.slots} == {"input", "output", "weight"}


def test_weights_are_read_where_they_lie_and_outputs_are_the_callers(compiled: Contact) -> None:
    lent = weights(compiled.artifact)
    executable: Any = BACKEND.load(compiled.artifact, CPU, lent)
    pointers = {tensor.data_ptr() for tensor in executable._held.values()}
    big = next(array for array in lent.values() if array.size == WEIGHT.size)
    assert big.ctypes.data in pointers
    given = GIVEN.copy()
    first = executable.run([given])
    for output in first:
        assert output.flags.writeable
        assert not np.may_share_memory(output, given)
        output[...] = 0
    again = executable.run([given])
    assert np.array_equal(given, GIVEN)
    np.testing.assert_allclose(again[0], compiled.outputs[0], rtol=1e-6)


CHILD = """
import os, sys
import numpy as np
from pathlib import Path
from fusewire.backends.inductor.engine import InductorBackend
from fusewire.contract.backend import Artifact, Slot
from fusewire.contract.region import first_device
from fusewire.dtypes import dtype
import shutil
assert shutil.which("g++") is None and shutil.which("ld") is None
folder = Path(sys.argv[1])
held = np.load(folder / "held.npz")
slots = tuple(
    Slot(role, name, dtype(of), tuple(map(int, dims.split())), digest or None)
    for role, name, of, dims, digest in held["slots"].tolist()
)
weights = {digest: held[digest] for digest in (slot.digest for slot in slots) if digest}
backend = InductorBackend()
artifact = Artifact(
    "native", (folder / "payload").read_bytes(), slots, launch={"copied": (0, 1, 1, 0, 0, 0)},
    key={"torch": backend.info.version},
)
executable = backend.load(artifact, first_device(backend), weights)
outputs = executable.run([held["given"]])
assert np.allclose(outputs[0], held["wanted"], rtol=1e-5, atol=1e-6)
assert outputs[3].dtype.name == "bfloat16"
print("right")
"""


def test_package_runs_in_another_process_without_a_compiler(
    compiled: Contact, tmp_path: Path
) -> None:
    artifact = compiled.artifact
    rows = [
        (slot.role, slot.name, slot.dtype.name, " ".join(map(str, slot.dims)), slot.digest or "")
        for slot in artifact.slots
    ]
    arrays: dict[str, Any] = {**weights(artifact), "given": GIVEN, "wanted": compiled.outputs[0]}
    np.savez(tmp_path / "held.npz", slots=np.array(rows), **arrays)
    (tmp_path / "payload").write_bytes(artifact.payload)
    empty = {**os.environ, "PATH": str(tmp_path)}
    child = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(child, capture_output=True, text=True, env=empty)
    assert done.stdout == "right\n", done.stderr


def test_artifact_of_another_version_is_refused(compiled: Contact) -> None:
    with pytest.raises(FormatError, match="Compile it again"):
        BACKEND.load(replace(compiled.artifact, key={"torch": "1.0"}), CPU, {})


# What is read is checked


def test_payload_comes_back_as_it_was_written() -> None:
    made = Library(b"\x7fELF code", {"a": np.arange(3), "b": np.ones((), np.float32)})
    read = Library.read(made.written())
    assert read.code == made.code
    assert {name: x.tolist() for name, x in read.constants.items()} == {"a": [0, 1, 2], "b": 1.0}


@pytest.mark.parametrize("cut", [0, 5, 20, 40, 90, -1])
def test_payload_that_is_cut_short_is_refused(cut: int) -> None:
    whole = Library(b"\x7fELF code", {"a": np.arange(3)}).written()
    with pytest.raises(FormatError, match="not a library of Inductor"):
        Library.read(whole[:cut])


def test_each_library_runs_its_own_code(tmp_path: Path) -> None:
    paths, opened = set(), []
    for number in range(6):
        source, made = tmp_path / f"{number}.c", tmp_path / f"{number}.so"
        source.write_text(f"int answer() {{ return {number}; }}")
        subprocess.run(["g++", "-xc", "-shared", "-fPIC", source, "-o", made], check=True)
        with as_file(made.read_bytes()) as path:
            opened.append(ctypes.CDLL(path))
            paths.add(path)
    assert [library.answer() for library in opened] == list(range(6))
    assert len(paths) == 6


def package(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def test_library_is_taken_out_of_a_package() -> None:
    code = b"\x7fELF code"
    made = package(("model/data/aotinductor/model/a.so", code), ("model/version", b"1"))
    assert library_in(made) == code


@pytest.mark.parametrize(
    "members",
    [
        [("../a.so", b"\x7fELF")],
        [("/a.so", b"\x7fELF")],
        [("a.so", b"\x7fELF"), ("b.so", b"\x7fELF")],
        [("a.so", b"#!/bin/sh")],
        [("a.cpp", b"int main")],
    ],
)
def test_package_that_is_not_as_expected_is_refused(members: list[tuple[str, bytes]]) -> None:
    with pytest.raises(FormatError):
        library_in(package(*members))


# What it refuses


def refused(graph: Graph) -> list[str]:
    return [x.reason for x in BACKEND.claim(graph, CPU) if isinstance(x, Refusal)]


def test_open_sizes_are_refused() -> None:
    x = value(float32, symbol("n"), 3)
    (reason,) = refused(Graph([x], [negative(x)]))
    assert "known sizes only" in reason
    with pytest.raises(DimError, match="Specialise"):
        BACKEND.compile(Graph([x], [negative(x)]), CPU, Config())


@pytest.mark.parametrize("of", [complex64, float32])
def test_concat_that_is_a_copy_of_complex_numbers_is_refused(of: DType) -> None:
    x, none, one = (value(of, size) for size in (3, 0, 1))
    for parts in ([none, x], [x], [none, none]):
        found = refused(Graph(list(dict.fromkeys(parts)), [concat(*parts, axis=0)]))
        assert [reason for reason in found if "would be a copy" in reason] == found
        assert bool(found) == of.is_complex
    assert not refused(Graph([x, one], [concat(x, one, axis=0)]))


def test_what_only_the_run_tells_is_refused() -> None:
    x = value(int64, 4)
    (reason,) = refused(Graph([x], [nonzero(x)]))
    assert "nonzero" in reason
    small = value(float8_e4m3fn, 4)
    assert "8 bits" in refused(Graph([small], [reshape(small, shape=(2, 2))]))[0]
    assert all(refuses(node) is None for node in network().nodes)


def test_comparisons_of_complex_numbers_are_refused() -> None:
    """What it compiles calls a library that is not there."""
    x = value(complex64, 4)
    assert "complex" in refused(Graph([x], [equal(x, x)]))[0]
    assert not refused(Graph([x], [add(x, x)]))


def test_number_of_threads_is_checked() -> None:
    with pytest.raises(OptionsError, match="at least 1"):
        BACKEND.compile(network(), CPU, Config(threads=0))


# Quick searches leave it out


def test_search_leaves_it_out_unless_its_budget_is_long() -> None:
    quick = TargetFinder(REGISTRY)
    assert "inductor" not in quick.expected()
    assert f"{LONG_BUDGET:.0f} s or more" in quick.left_out()["inductor"]
    long = replace(quick, has_slow=True)
    assert "inductor" in long.expected()
    assert not long.left_out()
