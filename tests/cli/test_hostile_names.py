"""Names in a model are a stranger's text: a terminal shows them and is not steered by them."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import helper

from fusewire.cli import main
from fusewire.errors import visible

NAMES = {
    "window title": "\x1b]0;owned\x07",
    "clear screen": "\x1b[2J\x1b[H",
    "colour": "\x1b[31mred\x1b[0m",
    "link": "\x1b]8;;http://example.org\x1b\\here\x1b]8;;\x1b\\",
    "C1 introducer": "\x9b31mred",
    "C1 string": "\x9d0;owned\x9c",
    "right to left": "abc\u202egnp.exe",
    "isolate": "a\u2066b\u2069",
    "backspace and return": "good\x08\x08\x08\x08evil\rover",
    "delete and shift": "a\x7f\x0e\x0fb",
}
# What no command may write: controls but for the end of a line, and marks of direction.
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(params=[*NAMES])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model all of whose names are hostile: of dims, values, nodes and the graph."""
    name = NAMES[request.param]
    types = (
        helper.make_tensor_value_info(f"{name} {side}", onnx.TensorProto.FLOAT, [f"{name} n", 4])
        for side in ("in", "out")
    )
    node = helper.make_node("Tanh", [f"{name} in"], [f"{name} out"], name=f"{name} node")
    graph = helper.make_graph([node], name, *([type_] for type_ in types))
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


QUIETLY = {
    "show": ["show"],
    "run": ["run", "--backend", "reference"],
    "explain": ["explain", "--backend", "reference"],
    "explain node": ["explain", "--backend", "reference", "--node", "0"],
    "fuse": ["fuse"],
    "bench": ["bench", "--backends", "reference", "--budget", "0.1"],
    "bench markdown": ["bench", "--backends", "reference", "--budget", "0.1", "--markdown"],
}


@pytest.mark.parametrize("command", [*QUIETLY])
def test_hostile_names_reach_the_terminal_escaped(command: str, model: Path) -> None:
    done = invoke(*QUIETLY[command], model)
    assert done.exit_code == 0, done.output
    assert not STEERS.search(done.output)


def test_hostile_names_in_errors_reach_the_terminal_escaped(model: Path, tmp_path: Path) -> None:
    for words in (
        ["show", "--shape", "nothing=1"],
        ["run", "--shape", "nothing=1"],
        ["compile", "--target", "nothing", "-o", tmp_path / "made"],
        ["run", "--input", f"{onnx.load(model).graph.input[0].name}={_integers(tmp_path)}"],
    ):
        done = invoke(*words, model)
        assert done.exit_code in (1, 2), done.output
        assert done.output
        assert not STEERS.search(done.output)


def _integers(folder: Path) -> Path:
    np.save(folder / "integers.npy", np.ones((2, 4), np.int32))
    return folder / "integers.npy"


def test_json_keeps_hostile_names_as_they_are(model: Path) -> None:
    done = invoke("show", "--json", model)
    assert not STEERS.search(done.output)
    name = onnx.load(model).graph.input[0].name
    assert json.loads(done.stdout)["inputs"][0]["name"] == name


def test_escaped_text_is_visible_and_ordinary_text_stays() -> None:
    assert visible("\x1b[2J\x9b\u202e") == r"\x1b[2J\x9b\u202e"
    assert visible("größe\nname\t[bold] 名前 😀") == "größe\nname\t[bold] 名前 😀"
