"""Models whose external data tries to be what it must not be: an attack a row, made in a folder.

Beside the folder lies a secret; inside it are honest weights of the same size. An attack succeeds
when a tensor could be read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from fusewire.onnx.read.model_file import Opened, open_model

SECRET = np.arange(1, 5, dtype=np.float32).tobytes()
HONEST = np.zeros(4, np.float32).tobytes()
Entries = list[tuple[str, str]]


@dataclass
class Box:
    """A folder for a model, with honest weights in it and a secret beside it."""

    root: Path
    # Done between opening the model and reading its tensors.
    afterwards: Callable[[], object] = field(default=lambda: None)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "sub").mkdir()
        self.secret.write_bytes(SECRET)
        self.weights.write_bytes(HONEST)

    @property
    def folder(self) -> Path:
        return self.root / "models"

    @property
    def secret(self) -> Path:
        return self.root / "secret.bin"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.bin"


def external(entries: Entries, dims: tuple[int, ...] = (4,), kind: int = TensorProto.FLOAT) -> Any:
    tensor = TensorProto(name="w", data_type=kind, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    return tensor


def at(location: str, *more: tuple[str, str]) -> Any:
    return external([("location", location), *more])


def model(tensor: Any) -> Any:
    """Add an initializer to an input."""
    info = helper.make_tensor_value_info
    x, y = (info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _in_attribute(tensor: Any) -> Any:
    found = model(tensor)
    del found.graph.initializer[:]
    found.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    return found


def _in_branch(tensor: Any) -> Any:
    found = model(tensor)
    info = helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])
    inner = [helper.make_node("Identity", ["w"], ["z"])]
    branch = helper.make_graph(inner, "branch", [], [info], [tensor])
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=condition),
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
    ]
    del found.graph.initializer[:], found.graph.node[:]
    found.graph.node.extend(nodes)
    return found


def _in_function(tensor: Any) -> Any:
    found = model(tensor)
    opsets = [helper.make_opsetid("", 17)]
    body = [
        helper.make_node("Constant", [], ["w"], value=tensor),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    found.functions.append(helper.make_function("own", "f", ["x"], ["y"], body, opsets))
    found.opset_import.append(helper.make_opsetid("own", 1))
    del found.graph.initializer[:], found.graph.node[:]
    found.graph.node.append(helper.make_node("f", ["x"], ["y"], domain="own"))
    return found


def _in_sparse(tensor: Any) -> Any:
    found = model(tensor)
    places = helper.make_tensor("", TensorProto.INT64, [4], [0, 1, 2, 3])
    found.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, places, [4]))
    del found.graph.initializer[:]
    return found


def _in_places(tensor: Any) -> Any:
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    found = model(values)
    places = external([(e.key, e.value) for e in tensor.external_data], (2,), TensorProto.INT64)
    found.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    del found.graph.initializer[:]
    return found


def _link(box: Box, name: str, target: str | Path) -> str:
    (box.folder / name).symlink_to(target)
    return name


def _hard(box: Box, name: str, target: Path) -> str:
    (box.folder / name).hardlink_to(target)
    return name


def _fifo(box: Box) -> str:
    os.mkfifo(box.folder / "fifo")
    return "fifo"


def _socket(box: Box) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(box.folder / "socket"))
    return "socket"


def _device(box: Box) -> str:
    """Make /dev/zero by another name; not everyone may."""
    os.mknod(box.folder / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    return "zero"


def _later(box: Box, change: Callable[[], object]) -> Any:
    box.afterwards = change
    return model(at("weights.bin"))


def _swapped(box: Box) -> Any:
    """Put a link in the place of the file that was checked."""

    def change() -> None:
        box.weights.unlink()
        box.weights.symlink_to(box.secret)

    return _later(box, change)


def _replaced(box: Box) -> Any:
    return _later(box, lambda: box.secret.replace(box.weights))


def _cut(box: Box) -> Any:
    return _later(box, lambda: os.truncate(box.weights, 3))


def _moved(box: Box) -> Any:
    """Put a link in the place of a folder on the way."""
    (box.folder / "sub" / "w").write_bytes(HONEST)

    def change() -> None:
        (box.folder / "sub").rename(box.folder / "gone")
        (box.root / "w").write_bytes(SECRET)
        _link(box, "sub", "..")

    box.afterwards = change
    return model(at("sub/w"))


def _twice(box: Box) -> Any:
    tensor = at("weights.bin")
    tensor.raw_data = HONEST
    return model(tensor)


def _broken_text(box: Box) -> bytes:
    """Write a location that is not UTF-8; the classes of onnx refuse to make one."""
    written: bytes = model(at("weights.bin")).SerializeToString()
    return written.replace(b"weights.bin", b"weight\xff.bin")


def _model_at(make: Callable[[Box], str]) -> Callable[[Box], Path]:
    return lambda box: box.folder / make(box)


# A location, a tensor, a model, the bytes of one, or the path of one.
Made = str | bytes | Path | Any
ESCAPES: dict[str, Callable[[Box], Made]] = {
    "up": lambda box: "../secret.bin",
    "down and up": lambda box: "sub/../../secret.bin",
    "up after a dot": lambda box: "./../secret.bin",
    "up after two slashes": lambda box: "sub//../../secret.bin",
    "up and back inside": lambda box: "sub/../weights.bin",
    "up to the root": lambda box: "../" * 40 + "etc/passwd",
    "absolute": lambda box: str(box.secret),
    "absolute, two slashes": lambda box: f"/{box.secret}",
    "absolute, inside": lambda box: str(box.weights),
    "/etc/passwd": lambda box: "/etc/passwd",
    "/proc/self/environ": lambda box: "/proc/self/environ",
    "/dev/zero": lambda box: "/dev/zero",
    "a URL": lambda box: f"file://{box.secret}",
    "a home folder": lambda box: "~/secret.bin",
    "percent signs": lambda box: "%2e%2e/secret.bin",
    "backslashes": lambda box: "..\\secret.bin",
    "a drive": lambda box: "C:\\Windows\\win.ini",
    "a share": lambda box: "\\\\host\\share\\secret.bin",
    "zero byte at the end": lambda box: "weights.bin\0",
    "zero byte after the way out": lambda box: "../secret.bin\0weights.bin",
    "nothing": lambda box: "",
    "the folder": lambda box: ".",
    "a folder inside": lambda box: "sub",
    "slash at the end": lambda box: "weights.bin/",
    "too long": lambda box: "sub/" * 5000 + "weights.bin",
    "no UTF-8": _broken_text,
    "link out": lambda box: _link(box, "link", "../secret.bin"),
    "link out, absolute": lambda box: _link(box, "link", box.secret),
    "link inside": lambda box: _link(box, "link", "weights.bin"),
    "link to a link": lambda box: _link(box, "second", _link(box, "link", "../secret.bin")),
    "link to itself": lambda box: _link(box, "link", "link"),
    "link to nothing": lambda box: _link(box, "link", "nowhere"),
    "link to a descriptor": lambda box: _link(box, "link", "/proc/self/fd/0"),
    "folder that is a link": lambda box: f"{_link(box, 'link', '..')}/secret.bin",
    "folder that is a link, deep": lambda box: f"{_link(box, 'sub/link', '../..')}/secret.bin",
    "folder that is /proc/self": lambda box: f"{_link(box, 'link', '/proc/self')}/environ",
    "hard link out": lambda box: _hard(box, "hard", box.secret),
    "hard link inside": lambda box: _hard(box, "hard", box.weights),
    "FIFO": _fifo,
    "socket": _socket,
    "device": _device,
    "address in memory": lambda box: at("*/_ORT_MEM_ADDR_/*", ("offset", str(id(box)))),
    "other folder by a key": lambda box: at("passwd", ("basepath", "/etc")),
    "code by a key": lambda box: at("../secret.bin", ("__class__", "x"), ("__init__", "y")),
    "offset past the end": lambda box: at("weights.bin", ("offset", "16")),
    "offset at half": lambda box: at("weights.bin", ("offset", "8")),
    "offset below 0": lambda box: at("weights.bin", ("offset", "-16")),
    "offset that wraps": lambda box: at("weights.bin", ("offset", str(2**64 - 16))),
    "offset of 30 digits": lambda box: at("weights.bin", ("offset", "1" * 30)),
    "offset in hex": lambda box: at("weights.bin", ("offset", "0x0")),
    "offset in other digits": lambda box: at("weights.bin", ("offset", "٠")),
    "length past the end": lambda box: at("weights.bin", ("length", str(2**40))),
    "length too small": lambda box: at("weights.bin", ("length", "8")),
    "length below 0": lambda box: at("weights.bin", ("length", "-1")),
    "tensor past the end": lambda box: external([("location", "weights.bin")], (5,)),
    "tensor of a terabyte": lambda box: external([("location", "weights.bin")], (2**38,)),
    "location given twice": lambda box: at("weights.bin", ("location", "../secret.bin")),
    "offset given twice": lambda box: at("weights.bin", ("offset", "0"), ("offset", "4")),
    "no location": lambda box: external([]),
    "data inside as well": _twice,
    "strings": lambda box: external([("location", "weights.bin")], (4,), TensorProto.STRING),
    "in an attribute": lambda box: _in_attribute(at("../secret.bin")),
    "in a branch": lambda box: _in_branch(at("../secret.bin")),
    "in a function": lambda box: _in_function(at("../secret.bin")),
    "in sparse values": lambda box: _in_sparse(at("../secret.bin")),
    "in sparse places": lambda box: _in_places(at("../secret.bin")),
    "bytes without a folder": lambda box: model(at("weights.bin")).SerializeToString(),
    "link put in later": _swapped,
    "file replaced later": _replaced,
    "file cut later": _cut,
    "folder replaced later": _moved,
    "model is a FIFO": _model_at(_fifo),
    "model is a socket": _model_at(_socket),
    "model is a device": _model_at(_device),
    "model is a folder": lambda box: box.folder,
    "model is /dev/zero": lambda box: Path("/dev/zero"),
    "model is not there": lambda box: box.folder / "none.onnx",
    "model has a zero byte": lambda box: f"{box.folder}/none\0.onnx",
}
# Given as they are, and not as the location of a tensor.
_AS_IT_IS = ("bytes without a folder", "model has a zero byte")


def attempt(name: str, box: Box) -> list[bytes]:
    """Make an attack, open its model and read every tensor; give what was read.

    What refuses it raises. PermissionError means that this user could not make it.
    """
    made = ESCAPES[name](box)
    opened = open_model(made if name in _AS_IT_IS else _stored(made, box))
    box.afterwards()
    return [tensor.tobytes() for tensor in read_all(opened)]


def _stored(made: Made, box: Box) -> Path:
    if isinstance(made, Path):
        return made
    if isinstance(made, str):
        made = at(made)
    if isinstance(made, TensorProto):
        made = model(made)
    path = box.folder / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path


def read_all(opened: Opened) -> Iterator[np.ndarray]:
    """Read every tensor of a model, wherever it is."""
    stack: list[Any] = [opened.proto]
    while stack:
        message = stack.pop()
        if isinstance(message, onnx.SparseTensorProto):
            yield opened.sparse(message).array
        elif isinstance(message, onnx.TensorProto):
            yield opened.constant(message).array
        else:
            for about, held in message.ListFields():
                if about.type == about.TYPE_MESSAGE:
                    stack.extend([held] if isinstance(held, onnx.ModelProto.__base__) else held)
