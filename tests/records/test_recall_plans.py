"""Plans of every form are run by another process without being made again."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fusewire.records.quarantine import Fact, quarantine
from fusewire.store.disk import Store

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
CHILD = """
import sys, warnings
import numpy as np
import fusewire as fw

path, out, fallback, given = sys.argv[1:5]
with np.load(given) as held:
    inputs = [held[name] for name in held.files]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    program = fw.compile(path, backend="onnxruntime", fallback=fallback)
    found = program(*inputs)
np.savez(out, *(found if isinstance(found, tuple) else (found,)))
heavy = [x for x in ("onnx", "fusewire.planning.planner", "fusewire.rewrite") if x in sys.modules]
print(heavy, len(said), [c.cache for c in program.why().contacts] if len(sys.argv) > 5 else "")
"""
Made = tuple[onnx.ModelProto, list[np.ndarray]]
rng = np.random.default_rng(0)
X = rng.normal(size=(3, 4)).astype(np.float32)
K = np.arange(1, 13).reshape(3, 4)


def model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> onnx.ModelProto:
    edges = [
        [helper.make_tensor_value_info(name, *of) for name, of in part.items()]
        for part in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "g", *edges)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def gives_an_input_back() -> Made:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Tanh", ["x"], ["y"])]
    edge = (FLOAT, ["n", 4])
    return model(nodes, {"x": edge}, {"y": edge, "same": edge}), [X]


def leaves_one_unused() -> Made:
    edge = (FLOAT, ["n", 4])
    return model([helper.make_node("Tanh", ["y"], ["z"])], {"x": edge, "y": edge}, {"z": edge}), [
        X,
        X,
    ]


def gives_a_constant() -> Made:
    held = helper.make_tensor("k", FLOAT, [2], [1.5, 2.5])
    nodes = [
        helper.make_node("Constant", [], ["k"], value=held),
        helper.make_node("Tanh", ["x"], ["y"]),
    ]
    edge = (FLOAT, ["n", 4])
    return model(nodes, {"x": edge}, {"y": edge, "k": (FLOAT, [2])}), [X]


def needs_sizes() -> Made:
    return model(
        [helper.make_node("Tanh", ["x"], ["y"])], {"x": (FLOAT, None)}, {"y": (FLOAT, None)}
    ), [X]


# ONNX Runtime computes powers of ints in float64: they are refused, and run on the reference.
POWER = helper.make_node("Pow", ["k", "k"], ["p"])
INTS = (INT64, ["n", 4])


def runs_in_regions() -> Made:
    nodes = [helper.make_node("Neg", ["x"], ["k"]), POWER, helper.make_node("Neg", ["p"], ["y"])]
    return model(nodes, {"x": INTS}, {"y": INTS}), [-K]


def drives_control_flow() -> Made:
    then = helper.make_graph([POWER], "then", [], [helper.make_tensor_value_info("p", *INTS)])
    no = helper.make_node("Neg", ["k"], ["q"])
    other = helper.make_graph([no], "other", [], [helper.make_tensor_value_info("q", *INTS)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    made = model([node], {"c": (BOOL, []), "k": INTS}, {"y": INTS})
    return made, [np.array(True), K]


WHOLE = [gives_an_input_back, leaves_one_unused, gives_a_constant, needs_sizes]
SPLIT = [runs_in_regions, drives_control_flow]


def run(
    path: Path, inputs: list[np.ndarray], fallback: str, *more: str
) -> tuple[str, list[np.ndarray]]:
    cache, out, given = (path.parent / name for name in ("cache", "out.npz", "given.npz"))
    np.savez(given, *inputs)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, (path, out, fallback, given)), *more],
        env={
            "FUSEWIRE_CACHE": str(cache),
            "FUSEWIRE_CONFIG": os.environ["FUSEWIRE_CONFIG"],
            "PATH": "/usr/bin:/bin",
            "HOME": str(path.parent),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(out) as found:
        return done.stdout.strip(), [found[name] for name in found.files]


@pytest.mark.parametrize("make", [*WHOLE, *SPLIT])
def test_second_process_plans_nothing(make: Callable[[], Made], tmp_path: Path) -> None:
    proto, inputs = make()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    fallback = "warn" if make in SPLIT else "error"
    told, cold = run(path, inputs, fallback)
    said, warm = run(path, inputs, fallback)
    # Nothing is planned, and who was warned is warned again.
    assert said == f"[] {told.split()[-1]}"
    assert (make is runs_in_regions) == said.endswith("1")
    assert len(warm) == len(cold)
    for left, right in zip(cold, warm, strict=True):
        np.testing.assert_array_equal(left, right)
    if make not in SPLIT:
        return
    # Asked why, it plans after all, and its regions are those that were recalled.
    said, _ = run(path, inputs, fallback, "why")
    assert "'hit'" in said
    assert "miss" not in said


def test_other_sizes_than_those_kept_are_planned(tmp_path: Path) -> None:
    proto, inputs = needs_sizes()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    run(path, inputs, "error")
    _, found = run(path, [X[:2]], "error")
    np.testing.assert_allclose(found[0], np.tanh(X[:2]), rtol=1e-5)


def test_region_that_was_found_wrong_since_is_not_recalled(tmp_path: Path) -> None:
    proto, inputs = runs_in_regions()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    _, cold = run(path, inputs, "warn")
    store = Store(tmp_path / "cache")
    for entry in list(store.entries("artifact")):
        if dict(entry.key.fields)["backend"] == "onnxruntime":
            quarantine(store, entry.key, Fact("wrong", "it was found out."))
    said, found = run(path, inputs, "warn")
    assert "fusewire.planning.planner" in said
    np.testing.assert_array_equal(cold[0], found[0])
