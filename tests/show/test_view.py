"""A plan to look at: its edges, what repeats, the times of regions, and what would change it."""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire import ops
from fusewire.cli import main
from fusewire.errors import OptionsError
from fusewire.show.blocks import RepeatedBlock, repeated_blocks
from fusewire.show.changes import changes
from fusewire.show.dot import to_dot
from fusewire.show.grouping import grouping, paths
from fusewire.show.palette import colours, luminance, text_colour
from fusewire.show.plan_view import PlanView
from fusewire.show.why import NodeWhy, PortWhy, Tried, Why

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def split() -> Iterator[str]:
    """A backend that does not take cos."""
    fw.register("tests.toy:split", name="split")
    yield "split"
    fw.unregister("split")


def test_why_says_where_operands_come_from() -> None:
    def function(x: Any) -> Any:
        values, places = ops.top_k(np.tanh(x), k=2)
        return values * 2, places

    program = fw.compile(function, X, backend="reference")
    why = program.why()
    assert [(port.name, port.type) for port in why.inputs] == [("x", "float32[3, 4]")]
    tanh, top, double = why.nodes
    assert (tanh.operands, top.operands) == (("input x",), ("0",))
    assert double.operands == ("1", "constant")
    assert [port.operand for port in why.outputs] == ["2", "1:1"]


def test_operands_in_bodies_are_places_in_the_body() -> None:
    def choice(x: Any) -> Any:
        return ops.cond(np.sum(x) > 0, x, then=lambda v: np.exp(np.tanh(v)), otherwise=np.exp)

    program = fw.compile(fw.trace(choice, fw.Spec((3, 4))), backend="torch-eager", fallback="allow")
    nodes = {node.place: node for node in program.why().nodes}
    (tanh,) = [node for node in nodes.values() if node.op == "tanh"]
    (operand,) = tanh.operands
    assert operand.startswith("input ")
    assert nodes[f"{tanh.place[:-1]}1"].operands == (tanh.place,)


def test_timeline_has_the_time_of_every_region(split: str) -> None:
    program = fw.compile(
        lambda x: np.cos(np.tanh(x)) @ x.T, X, backend=split, level=0, fallback="allow"
    )
    view = program.explain(X)
    assert view.timeline is not None
    timeline, regions = view.timeline, program.why().regions
    assert [(s.region, s.backend) for s in timeline.spans] == [(r.name, r.backend) for r in regions]
    assert len(timeline.spans) == 3
    ends = [0.0, *(span.start + span.seconds for span in timeline.spans)]
    # One after the other, and all within the run.
    assert all(span.start >= end for span, end in zip(timeline.spans, ends, strict=False))
    assert ends[-1] <= timeline.seconds
    assert all(0 < span.low <= span.median <= span.high for span in timeline.spans)
    assert timeline.runs > 1


@pytest.mark.timing
def test_timeline_shows_the_region_that_is_slow() -> None:
    def slow(x: Any) -> Any:
        return np.cumsum(np.tanh(x) @ x)

    big = np.ones((700, 700), np.float32)
    program = fw.compile(slow, big, backend="torch-eager", level=0, fallback="allow")
    timeline = program.explain(big).timeline
    assert timeline is not None
    assert {span.backend for span in timeline.spans} == {"torch-eager", "reference"}
    assert sum(span.seconds for span in timeline.spans) > timeline.seconds / 2


def test_explaining_without_arguments_runs_nothing() -> None:
    program = fw.compile(np.tanh, X, backend="torch-eager", level=0)
    view = program.explain()
    assert view.timeline is None
    assert not view.why.contacts


def _tried(name: str, seconds: float, *engines: str, **fields: Any) -> Tried:
    given = {"status": "right", "low": seconds * 0.98, "high": seconds * 1.02, **fields}
    return Tried(name, engines[0], "cpu", "graph", seconds=seconds, engines=engines, **given)


def test_changes_name_the_next_best_without_each_engine() -> None:
    rows = [
        _tried("openvino + xla", 1.0, "openvino", "xla", is_chosen=True),
        _tried("openvino", 1.01, "openvino"),
        _tried("onnxruntime", 1.38, "onnxruntime"),
        _tried("torch-eager", 0.5, "torch-eager", status="wrong"),
    ]
    without_openvino, without_xla = changes(rows)
    assert without_openvino.sentence() == "without openvino: +38% (onnxruntime)"
    assert without_xla.sentence() == "without xla: +1% (openvino, within the noise)"
    assert without_openvino.low is not None
    assert math.isclose(without_openvino.low, 1.38 * 0.98 / 1.02 - 1)


def test_changes_name_a_candidate_that_the_race_had_no_need_to_judge() -> None:
    rows = [
        _tried("openvino", 1.0, "openvino", is_chosen=True),
        _tried("onnxruntime", 1.2, "onnxruntime", status="not judged"),
        _tried("xla", 1.1, "xla", status="failed"),
    ]
    (change,) = changes(rows)
    assert change.sentence() == "without openvino: +20% (onnxruntime, not judged yet)"


def test_changes_name_no_candidate_that_the_memory_limit_forbids() -> None:
    rows = [
        _tried("xla", 1.0, "xla", is_chosen=True),
        _tried("onnxruntime", 1.1, "onnxruntime", is_barred=True),
        _tried("webgpu", 3.0, "webgpu"),
    ]
    (change,) = changes(rows)
    assert change.sentence() == "without xla: +200% (webgpu)"
    (change,) = changes(rows[:2])
    assert change.sentence() == (
        "without xla: nothing is left that keeps to memory_limit (onnxruntime needs more)"
    )


def test_changes_say_if_nothing_is_left_and_count_the_fallback() -> None:
    (alone,) = changes([_tried("xla", 1.0, "xla", is_chosen=True)])
    assert alone.sentence() == "without xla: nothing is left that may be right"
    rows = [
        _tried("webgpu", 1.0, "webgpu", is_chosen=True, elsewhere=3),
        _tried("webgpu, expanded", 2.0, "webgpu"),
    ]
    assert [change.without for change in changes(rows)] == ["webgpu", "reference"]
    assert [change.change for change in changes(rows)] == [None, 1.0]
    assert not list(changes([]))


LAYER = ["matmul", "add", "reshape", "matmul", "softmax", "matmul", "add", "layer_norm"]


def _shape(blocks: tuple[RepeatedBlock, ...]) -> list[tuple[int, int, int]]:
    return [(block.start, block.stop, block.copies) for block in blocks]


def test_layers_are_one_row_of_equal_blocks() -> None:
    labels = ["gather", "add", *LAYER * 12, "reduce_mean", "softmax"]
    edges = list(itertools.pairwise(range(len(labels))))
    (row,) = repeated_blocks(labels, edges)
    assert (row.start, row.stop, row.copies) == (2, 2 + 12 * 8, 12)
    assert _shape(row.inside) == [(2 + 8 * i, 10 + 8 * i, 1) for i in range(12)]
    assert {block.number for block in row.inside} == {row.number}


def test_equal_block_that_stands_alone_is_found() -> None:
    labels = [*LAYER * 3, "conv", "relu", *LAYER, "argmax"]
    row, alone = repeated_blocks(labels)
    assert _shape((row, alone)) == [(0, 24, 3), (26, 34, 1)]
    assert alone.number == row.number


def test_row_begins_where_the_fewest_edges_are_cut() -> None:
    # Residuals go from the first node of each layer to its last; one node more before and after.
    labels = [LAYER[-1], *LAYER * 4]
    edges = list(itertools.pairwise(range(len(labels))))
    edges += [(1 + 8 * i, 8 + 8 * i) for i in range(4)]
    (row,) = repeated_blocks(labels, edges)
    assert (row.start, row.copies) == (1, 4)


def test_rows_inside_a_block_are_found() -> None:
    stage = [*["conv", "relu", "conv", "add"] * 3, "pool", "norm", "resize", "clip", "tanh"]
    (row,) = repeated_blocks([*stage * 5])
    assert row.copies == 5
    assert _shape(row.inside[1].inside) == [(17, 29, 3)]


def test_many_repetitions_take_bounded_time() -> None:
    rng = np.random.default_rng(0)
    start = time.monotonic()
    repeated_blocks([f"op{i}" for i in rng.integers(0, 50, 5000)])
    repeated_blocks(["exp"] * 60_000)
    repeated_blocks([f"op{i}" for i in np.repeat(rng.integers(0, 9, 4000), 10)])
    assert time.monotonic() - start < 15


def _node(place: str, op: str, operands: tuple[str, ...], **fields: Any) -> NodeWhy:
    given: dict[str, Any] = {"backend": "xla", "region": "region0", "verdicts": (), **fields}
    return NodeWhy(place, op, ("float32[2]",), fields.pop("source", ""), "data", given["backend"],
                   given["region"], given["verdicts"], operands)  # fmt: skip


def test_dot_has_every_node_and_edge_and_nothing_ends_a_string() -> None:
    evil = 'x"]; evil [label="\\'
    nodes = (_node("0", evil, (f"input {evil}",)), _node("1", "exp", ("0", "0")))
    ports = (PortWhy(evil, "float32[2]"),), (PortWhy("y", "float32[2]", "1"),)
    text = to_dot(evil, Why("xla", "cpu", "warn", nodes, (), (), (), (), (), (), (), 0, *ports))
    # Without what is quoted, only names of attributes, ids of clusters and punctuation are left.
    bare = re.sub(r'"(\\.|[^"\\])*"', "@", text)
    assert '"' not in bare
    assert "evil" not in bare
    assert bare.count("->") == 3


def test_dot_has_a_cluster_for_every_region(tmp_path: Path) -> None:
    program = fw.compile(lambda x: np.cumsum(np.tanh(x) * 2), X, backend="torch-eager", level=0,
                         fallback="allow")  # fmt: skip
    text = program.explain().to_dot()
    assert text.count("subgraph cluster_") == len(program.why().regions)
    assert '"0" -> "1"' in text
    program.explain().save(tmp_path / "plan.dot")
    assert (tmp_path / "plan.dot").read_text() == text


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    program = fw.compile(np.tanh, X, backend="reference")
    with pytest.raises(OptionsError, match=r"plan\.doc: end its name in"):
        program.explain().save(tmp_path / "plan.doc")


def test_command_writes_dot_and_json(tmp_path: Path) -> None:
    fw.save_onnx(lambda x: np.exp(x).sum(), tmp_path / "model.onnx", X)
    words = ["explain", str(tmp_path / "model.onnx"), "--backend", "reference"]
    done = CliRunner().invoke(main, [*words, "--dot", str(tmp_path / "plan.dot")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "plan.dot").read_text().startswith("digraph")
    done = CliRunner().invoke(main, [*words, "--json"])
    data = json.loads(done.stdout)
    assert data["nodes"][0]["operands"] == ["input x"]
    assert [span["backend"] for span in data["timeline"]["spans"]] == ["reference"]
    assert data["changes"] == []


# What people with the common kinds of colour blindness see, in linear light: Machado, Oliveira and
# Fernandes, "A physiologically-based model for simulation of color vision deficiency" (2009).
SIGHTS = {
    "all colours": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                 [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def _lab(colour: str, sight: str) -> Any:
    """Convert to CIELAB as somebody sees it."""
    levels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIGHTS[sight]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ seen / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


ENGINES = [f"engine{i}" for i in range(8)] + ["reference", "host"]


@pytest.mark.parametrize("sight", [*SIGHTS])
def test_colours_of_engines_are_told_apart_by_everybody(sight: str) -> None:
    seen = {name: _lab(colour, sight) for name, colour in colours(ENGINES).items()}
    for one, other in itertools.combinations(ENGINES, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)


def test_colours_of_the_first_engines_differ_in_lightness() -> None:
    lightness = [_lab(colour, "all colours")[0] for colour in colours(ENGINES[:6]).values()]
    assert min(abs(a - b) for a, b in itertools.combinations(lightness, 2)) > 8


def test_text_on_every_colour_is_readable() -> None:
    for colour in colours(ENGINES).values():
        light, dark = sorted((luminance(colour), luminance(text_colour(colour))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, colour


@pytest.fixture(scope="module")
def repeated() -> PlanView:
    """Thirty equal blocks, and one node that the engine refuses."""

    def layers(x: Any) -> Any:
        for _ in range(30):
            x = np.tanh(np.exp(np.sin(x)) * 0.5)
        return np.cumsum(x)

    program = fw.compile(layers, X, backend="torch-eager", level=0, fallback="allow")
    return program.explain(X)


def test_graph_for_model_explorer_is_whole(repeated: PlanView) -> None:
    collection = json.loads(json.dumps(repeated.to_model_explorer()))
    assert [*collection] == ["label", "graphs"]
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"]) == len(repeated.why.nodes) + 2
    # The fields of GraphNode, IncomingEdge, KeyValue and MetadataItem, and no others.
    known = {"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata", "style"}
    for node in nodes.values():
        assert {"id", "label"} <= node.keys() <= known
        for edge in node.get("incomingEdges", []):
            assert edge.keys() == {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}
            assert edge["sourceNodeId"] in nodes
        for pair in node.get("attrs", []):
            assert pair.keys() == {"key", "value"}
            assert isinstance(pair["value"], str)
    spaces = {node.get("namespace", "") for node in nodes.values()}
    assert any(re.fullmatch(r"region\d+/30 × block A/block A 17", space) for space in spaces)
    refused = [pair for pair in nodes["120"]["attrs"] if pair["key"] == "refused"]
    assert "is not in the table" in refused[0]["value"]


def test_node_data_for_model_explorer_has_the_engine_of_every_node(repeated: PlanView) -> None:
    data = json.loads(json.dumps(repeated.to_node_data()))
    (graph,) = repeated.to_model_explorer()["graphs"]
    about = data[graph["id"]]
    assert {"name", "results"} <= about.keys()
    assert about["results"].keys() == {node.place for node in repeated.why.nodes}
    assert {row["value"] for row in about["results"].values()} == {"torch-eager", "reference"}
    assert about["results"]["0"]["bgColor"] != about["results"]["120"]["bgColor"]


def test_bodies_of_control_flow_are_groups_of_their_own() -> None:
    def choice(x: Any) -> Any:
        return ops.cond(np.sum(x) > 0, x, then=lambda v: np.exp(np.tanh(v)), otherwise=np.exp)

    program = fw.compile(fw.trace(choice, fw.Spec((3, 4))), backend="torch-eager", fallback="allow")
    nodes = program.why().nodes
    where = dict(
        zip((node.op for node in nodes), paths(grouping(nodes, by_region=False)), strict=False)
    )
    (cond,) = [node.place for node in nodes if node.op == "cond"]
    assert where["tanh"] == (f"cond {cond}", "then")
    assert where["cond"] == (f"cond {cond}",)


def test_onnx_copy_has_engines_and_reasons_in_its_nodes(tmp_path: Path) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "shown.onnx"
    fw.save_onnx(lambda x: np.cumsum(np.tanh(x), axis=1), source, X)
    program = fw.compile(str(source), backend="torch-eager", level=0, fallback="allow")
    program.explain(X).save_onnx(source, target)
    onnx.checker.check_model(onnx.load(target), full_check=True)
    notes = {
        node.op_type: {entry.key: entry.value for entry in node.metadata_props}
        for node in onnx.load(target).graph.node
    }
    assert notes["Tanh"]["fusewire.engine"] == "torch-eager"
    assert notes["CumSum"]["fusewire.engine"] == "reference"
    assert re.search(r"^region\d \(.*s\)$", notes["Tanh"]["fusewire.region"])
    assert "cumsum is not in the table" in notes["CumSum"]["fusewire.not_on.torch-eager"]
    # It is still the same model.
    assert np.array_equal(fw.compile(str(target), backend="reference")(X), np.cumsum(np.tanh(X), 1))


def test_command_writes_every_kind_of_file(tmp_path: Path) -> None:
    fw.save_onnx(lambda x: np.exp(x).sum(), tmp_path / "model.onnx", X)
    kinds = {"html": "<!doctype", "dot": "digraph", "model-explorer": "{", "node-data": "{"}
    words = ["explain", str(tmp_path / "model.onnx"), "--backend", "reference"]
    for kind in (*kinds, "onnx"):
        words += [f"--{kind}", str(tmp_path / kind)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    for kind, start in kinds.items():
        assert (tmp_path / kind).read_text().startswith(start)
    assert onnx.load(tmp_path / "onnx").graph.node[0].metadata_props
