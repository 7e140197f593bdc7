"""Which nodes become one kernel, which do not and why; and that a fused graph means the same."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.contract.backend import Device
from fusewire.errors import GraphError, RefusedError, RegistryError
from fusewire.fusing.fuse import FusedOperation, FusionBackends, NoFusion
from fusewire.fusion.cost import KernelLimits, Work
from fusewire.fusion.grouping import Fusion, fuse
from fusewire.fusion.kinds import kind_of
from fusewire.fusion.patterns import PATTERNS
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import SequenceType, TensorType
from fusewire.numerics.judge import judge_op
from fusewire.ops.declare import Kind
from fusewire.ops.interpret import interpret
from fusewire.ops.table import verify
from fusewire.registry import REGISTRY
from tests.random_graphs import FromRandom, random_graph

Shape = tuple[int, ...]


def traced(function: Callable[..., Any], *shapes: Shape) -> Graph:
    return fw.trace(function, *(fw.Spec(shape, "float32") for shape in shapes))


def fused(function: Callable[..., Any], *shapes: Shape, **options: Any) -> Fusion:
    found = fuse(traced(function, *shapes), **options)
    check(found)
    return found


def check(fusion: Fusion) -> None:
    """Groups hold each node once, read only what earlier groups store, and mean the same."""
    nodes = [node for group in fusion.groups for node in group.nodes]
    assert len(set(nodes)) == len(nodes)
    assert {*nodes} == {n for n in fusion.graph.nodes if kind_of(n) is not Kind.FREE}
    stored: set[Value] = set()
    for group in fusion.groups:
        assert all(v in stored or v.node is None for v in group.reads), group
        stored.update(group.outputs)
    verify(fusion.fused)
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(v.tensor.shape).astype(np.float32)  # type: ignore[arg-type]
        for v in fusion.given.inputs
    ]
    verdict = judge_op(fusion.given, inputs, interpret(fusion.fused, inputs))
    assert verdict.status == "right", verdict.reason


def patterns(fusion: Fusion) -> list[str]:
    return [group.pattern for group in fusion.groups]


def reasons(fusion: Fusion) -> str:
    return "; ".join(f"{found.node.op}: {found.reason}" for found in fusion.refused)


def bn(x: Any, c: Any) -> Any:
    return ops.batch_norm(x, c, c, c, ops.exp(c))


ONE: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "elementwise": (lambda x, y: np.maximum(x * y + 1, 0) - x, ((4, 5), (4, 5))),
    "convolution + activation": (
        lambda x, w, b: ops.relu(ops.conv(x, w, b)),
        ((1, 2, 6, 6), (3, 2, 3, 3), (3,)),
    ),
    "convolution + batch norm": (
        lambda x, w, c: ops.relu(bn(ops.conv(x, w), c)),
        ((1, 2, 6, 6), (3, 2, 3, 3), (3,)),
    ),
    "linear + activation": (
        lambda x, w, b: ops.gelu(ops.linear(x, w, b)),
        ((5, 4), (3, 4), (3,)),
    ),
    "reduction + elementwise": (lambda x: np.sqrt(np.sum(x * x, -1) + 1), ((5, 6),)),
    "softmax": (lambda x: ops.softmax(x), ((3, 4, 5),)),
    "layer norm": (lambda x, s, b: ops.layer_norm(x, s, b), ((3, 4), (4,), (4,))),
    "rms norm": (lambda x, s: ops.rms_norm(x, s), ((3, 4), (4,))),
    "attention": (lambda q, k, v: ops.attention(q, k, v), ((1, 2, 3, 4),) * 3),
    "mixed": (lambda x: ops.relu(ops.max_pool(x, window=(2, 2))), ((1, 2, 4, 4),)),
}


@pytest.mark.parametrize("pattern", ONE)
def test_a_pattern_is_one_kernel(pattern: str) -> None:
    function, shapes = ONE[pattern]
    found = fused(function, *shapes)
    assert patterns(found) == [pattern]
    assert found.before.launches > found.after.launches == 1
    assert found.after.bytes <= found.before.bytes
    assert found.after.bytes == found.least


LARGE: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "softmax": (lambda x: ops.softmax(x), ((64, 512, 1024),)),
    "layer norm": (lambda x, s: ops.layer_norm(x, s), ((64, 512, 1024), (1024,))),
    "reduction + elementwise": (
        lambda x: x * ops.sigmoid(np.mean(x, (2, 3), keepdims=True)),
        ((64, 256, 56, 56),),
    ),
}


@pytest.mark.parametrize("pattern", LARGE)
def test_what_a_row_needs_once_is_not_counted_for_each_element(pattern: str) -> None:
    function, shapes = LARGE[pattern]
    found = fuse(traced(function, *shapes))
    assert patterns(found) == [pattern]
    assert found.after.bytes == found.least


def test_every_pattern_is_shown_and_has_a_rank() -> None:
    assert {*ONE, "single", "copy"} == {*PATTERNS}
    assert sorted(p.priority for p in PATTERNS.values()) == [*range(len(PATTERNS))]


def test_a_product_does_not_compute_its_factors_many_times() -> None:
    found = fused(lambda x, w: np.exp(x) @ w, (4, 5), (5, 6))
    assert patterns(found) == ["single", "single"]
    assert "would compute exp many times for each element" in reasons(found)


def test_a_cheap_factor_is_computed_where_it_is_used() -> None:
    assert len(fused(lambda x, w: (x * 2) @ w, (4, 5), (5, 6)).groups) == 1


def test_one_kernel_has_one_product() -> None:
    found = fused(lambda x, a, b: (x @ a) * (x @ b), (4, 5), (5, 6), (5, 6))
    assert len(found.groups) == 2
    assert "one sum of products" in reasons(found)


def test_what_finishes_a_product_stays_with_it() -> None:
    found = fused(lambda x, w, s: ops.layer_norm(x @ w + 1, s), (4, 5), (5, 6), (6,))
    assert patterns(found) == ["linear + activation", "layer norm"]
    assert "finishes what is computed before it" in reasons(found)


def test_a_value_that_is_used_later_too_is_stored_beside() -> None:
    def residual(x: Any, y: Any, s: Any, w: Any) -> Any:
        both = x + y
        return ops.layer_norm(both, s) @ w + both

    found = fused(residual, (4, 5), (4, 5), (5,), (5, 5))
    assert patterns(found) == ["layer norm", "linear + activation"]
    assert len(found.groups[0].outputs) == 2


def test_a_value_of_another_shape_is_a_kernel_of_its_own() -> None:
    def two(x: Any) -> Any:
        both = np.exp(x)
        return both * 2, np.sum(both, 1)

    found = fused(two, (4, 5))
    assert sorted(patterns(found)) == ["elementwise", "single"]


def test_folds_over_other_axes_are_other_kernels() -> None:
    found = fused(lambda x: ops.softmax(ops.softmax(x, axis=0), axis=1), (4, 5))
    assert patterns(found) == ["softmax", "softmax"]
    assert "divide: it finishes what is computed before it" in reasons(found)
    sums = fused(lambda x: np.sum(np.sum(x, 0), 0), (4, 5))
    assert "over other axes" in reasons(sums)


def test_results_that_stand_beside_other_rows_are_not_folded_together() -> None:
    def distances(x: Any) -> Any:
        size = np.sum(x * x, 1)
        rows = np.sum(x, 1)
        return size[:, None] + rows[None, :]

    found = fused(distances, (6, 5))
    assert len(found.groups) == 2
    assert "do not stand beside their rows" in reasons(found)


def test_nothing_is_fused_around_a_cycle() -> None:
    def crossed(x: Any, w: Any) -> Any:
        start = np.exp(x)
        return start + np.tanh(start @ w)

    check(fuse(traced(crossed, (4, 4), (4, 4))))


def test_views_belong_to_whoever_reads_them() -> None:
    found = fused(lambda x: np.exp(np.transpose(x)) + np.reshape(x, (4, 5)), (5, 4))
    assert len(found.groups) == 1
    assert found.before.launches == 2


def test_an_output_that_is_a_view_is_copied() -> None:
    found = fused(lambda x: (np.transpose(x), x + 1), (4, 5))
    assert sorted(patterns(found)) == ["copy", "single"]


def test_limits_hold() -> None:
    def chain(x: Any) -> Any:
        for _ in range(20):
            x = x * 2 + 1
        return x

    small = fused(chain, (8,), limits=KernelLimits(nodes=8))
    assert max(len(group.nodes) for group in small.groups) == 8
    found = fused(lambda *xs: sum(xs[1:], xs[0]), *[(4,)] * 12, limits=KernelLimits(buffers=5))
    assert all(len(g.reads) + len(g.outputs) <= 5 for g in found.groups)
    assert "5 buffers at most" in reasons(found)


def test_a_row_of_attention_that_does_not_fit_is_three_kernels() -> None:
    shapes = ((1, 2, 8, 4),) * 3
    found = fused(
        lambda q, k, v: ops.attention(q, k, v), *shapes, limits=KernelLimits(local_bytes=16)
    )
    assert patterns(found) == ["linear + activation", "reduction + elementwise", "single"]


def test_a_long_row_is_not_left_to_one_group_of_invocations() -> None:
    found = fused(lambda x: ops.softmax(x), (3, 9), limits=KernelLimits(row=8))
    assert len(found.groups) > 1
    assert "too long" in reasons(found)


def test_profit_is_asked_of_the_cost() -> None:
    def cost(work: Work) -> float:
        return work.launches * -1.0

    found = fused(lambda x: np.exp(x) + 1, (4,), cost=cost)
    assert len(found.groups) == 2
    assert "would cost" in reasons(found)


def test_what_a_broadcast_would_compute_too_often_is_stored() -> None:
    found = fused(lambda x, y: np.exp(x)[:, None] * y, (1000,), (1000, 1000))
    assert len(found.groups) == 2


def test_sequences_are_refused() -> None:
    value = Value(SequenceType(TensorType(ops.add.dtypes[0], (2,))), "s")
    with pytest.raises(GraphError, match="Fusion is for tensors"):
        fuse(Graph([value], [value], []))


def test_a_fused_graph_is_a_program_like_any_other() -> None:
    found = fused(lambda x, w: ops.softmax(np.tanh(x @ w)), (3, 4), (4, 5))
    assert [node.op for node in found.fused.nodes] == ["fused", "fused"]
    inputs = [np.ones((3, 4), np.float32), np.eye(4, 5, dtype=np.float32)]
    program = fw.compile(found.fused, backend="reference")
    np.testing.assert_allclose(program(*inputs).sum(1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_random_graphs_keep_their_meaning(seed: int) -> None:
    made = random_graph(FromRandom(seed), 10, lambda node: node.op != "fused")
    types = [
        v.type for v in (*made.graph.inputs, *(v for n in made.graph.nodes for v in n.outputs))
    ]
    if not all(isinstance(t, TensorType) for t in types):
        return
    got = interpret(fuse(made.graph).fused, made.inputs)
    assert judge_op(made.graph, made.inputs, got).status != "wrong"


def test_time_is_linear_in_nodes() -> None:
    def chain(count: int) -> Graph:
        def function(x: Any) -> Any:
            for index in itertools.repeat(2.0, count):
                x = np.maximum(x, index) * 3.0
            return x

        return traced(function, (8,))

    def seconds(graph: Graph) -> float:
        start = time.process_time()
        fuse(graph)
        return time.process_time() - start

    short, long = chain(30), chain(240)
    # Eight times the nodes: linear takes 8 times as long, quadratic 64 times.
    assert seconds(long) < 24 * min(seconds(short) for _ in range(3))


# The face for fusion backends


def softmax() -> Graph:
    return traced(lambda x: ops.softmax(x), (4, 6))


def test_a_fused_operation_tells_its_kernels() -> None:
    (operation,) = FusionBackends().create("reference").operations(softmax())
    assert isinstance(operation, FusedOperation)
    assert [node.op for node in operation.parts] == ["softmax"]
    assert operation.pattern.strategy == "rows"
    (spec,) = operation.specs
    assert [b.shape for b in (*spec.inputs, *spec.outputs)] == [(4, 6), (4, 6)]
    assert spec.flags == ("rows",)
    assert spec.block == (8,)


def test_attention_as_an_operation_keeps_its_rows() -> None:
    graph = traced(lambda q, k, v: ops.attention(q, k, v), *((1, 2, 3, 4),) * 3)
    (operation,) = FusionBackends().create("reference").operations(graph)
    (spec,) = operation.specs
    assert spec.temporary_bytes == 2 * 3 * 4


def test_a_backend_compiles_what_it_fused() -> None:
    backend = FusionBackends().create("xla")
    (operation,) = backend.operations(softmax())
    kernel = backend.compile(operation)
    assert kernel.id.startswith("xla-")
    assert kernel.binary
    assert kernel.format == "xla/native"
    assert kernel.metrics["compile_seconds"] > 0


def test_a_backend_says_what_it_can_do() -> None:
    found = FusionBackends().create("xla").capabilities
    assert "elementwise" in found.patterns
    assert "attention" not in found.patterns
    assert {"float32", "int8"} <= {of.name for of in found.dtypes}
    assert found.caches_binaries


def test_a_device_with_timestamps_profiles() -> None:
    backend = REGISTRY.get("webgpu")
    has = [x.facts["has_timestamps"] for x in backend.probe() if isinstance(x, Device)]
    assert FusionBackends().create("webgpu").capabilities.profiles is has[0]
    assert not FusionBackends().create("xla").capabilities.profiles


def test_without_a_name_the_most_preferred_is_taken() -> None:
    backends = FusionBackends()
    best = next(name for name in REGISTRY.ranked() if REGISTRY.meet(name).devices)
    assert backends.get() is backends.get("auto") is backends.get(best)
    assert fw.fuse(softmax(), "auto").after.launches == 1
    REGISTRY.set_default("reference")
    try:
        assert backends.get().kind == backends.create("auto").kind == "reference"
    finally:
        REGISTRY.set_default(None)


def test_what_is_refused_is_in_no_kernel() -> None:
    graph = traced(lambda x: np.exp(x * 2 + 1) - x, (8,))

    def apart(given: Graph) -> dict[Node, str]:
        return {node: "not here" for node in given.nodes if node.op == "exp"}

    found = fuse(graph, apart=apart)
    check(found)
    assert [[node.op for node in group.nodes] for group in found.groups] == [
        ["multiply", "add"],
        ["exp"],
        ["subtract"],
    ]
    assert "not here" in reasons(found)


def test_a_backend_is_asked_what_it_takes() -> None:
    graph = traced(lambda x: np.exp(ops.det(x) * 2), (3, 3))
    found = fw.fuse(graph, "webgpu")
    assert [[node.op for node in group.nodes] for group in found.groups] == [
        ["det"],
        ["multiply", "exp"],
    ]


def test_one_says_whether_it_can_fuse() -> None:
    backends = FusionBackends()
    found = backends.find(softmax())
    assert found is not None
    assert found.refusal(softmax()) is None
    two = traced(lambda x, w: np.exp(x) @ w, (4, 5), (5, 6))
    assert "makes 2 kernels of it" in str(found.refusal(two))


def test_fusion_of_type_none_leaves_nodes_alone() -> None:
    none = FusionBackends().create("none")
    found = none.fuse(softmax())
    assert found.before.launches == found.after.launches
    with pytest.raises(RefusedError, match="compiles nothing"):
        none.compile(none.operations(softmax())[0])


def test_types_are_added_and_removed_by_name() -> None:
    backends = FusionBackends()
    backends.register("mine", NoFusion)
    assert backends.get("mine") is backends.get("mine")
    with pytest.raises(RegistryError, match="already"):
        backends.register("xla", NoFusion)
    backends.unregister("mine")
    with pytest.raises(RegistryError, match="No fusion backend"):
        backends.unregister("mine")
