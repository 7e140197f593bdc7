"""The founding requirements about fusion, 25 to 31, each as the smallest program that shows it."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import OptionsError, RefusedError, RegistryError, ShapeMismatchError
from fusewire.fusing.fuse import (
    CompiledKernel,
    FusedOperation,
    Fusion,
    FusionBackend,
    FusionBackends,
    FusionCapabilities,
    NoFusion,
    Pattern,
)
from fusewire.fusion.samples import SAMPLES, sample
from fusewire.ir.graph import Graph
from fusewire.numerics.judge import judge_op
from fusewire.plan.guards import Checks

RUNS_HERE = ("webgpu", "xla", "triton")


def chain() -> Graph:
    return fw.trace(lambda x, y: np.exp(x * y) + y, *[fw.Spec((4, 6), "float32")] * 2)


def inputs_of(graph: Graph) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(v.tensor.shape).astype(np.float32) for v in graph.inputs]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["triton", "xla", "webgpu", "none"])
def test_25_a_fusion_backend_says_whether_it_fuses_and_compiles_the_result(kind: str) -> None:
    backend = fw.fusion_backends.get(kind)
    assert backend.kind == kind
    if kind == "none":
        assert "makes 3 kernels of it" in str(backend.refusal(chain()))
        with pytest.raises(RefusedError, match="Choose a backend"):
            backend.compile(backend.operations(chain())[0])
        return
    assert backend.refusal(chain()) is None
    (operation,) = backend.operations(chain())
    assert backend.compile(operation).operation is operation


def test_26_the_result_of_fusing_has_graph_operations_counts_and_refusals() -> None:
    graph = fw.trace(lambda x, w: np.exp(x + 1) @ w, *[fw.Spec((5, 5), "float32")] * 2)
    fusion = fw.fuse(graph, "webgpu")
    assert (len(fusion.given.nodes), len(fusion.groups)) == (3, 2)
    assert fusion.before.launches == 3
    assert fusion.after.launches == 2
    assert [node.op for node in fusion.fused.nodes] == ["fused", "matmul"]
    (refused,) = fusion.refused
    assert (refused.node.op, refused.user.op) == ("exp", "matmul")
    assert "many times" in refused.reason


def test_27_a_fused_operation_has_parts_pattern_ir_and_specification() -> None:
    (operation,) = fw.fusion_backends.get("webgpu").operations(sample("softmax"))
    assert [part.op for part in operation.parts] == ["softmax"]
    pattern = operation.pattern
    assert (pattern.name, pattern.strategy) == ("softmax", "rows")
    assert pattern.sequence == ("reduction", "elementwise", "reduction", "elementwise")
    assert [str(value.type) for value in operation.graph.inputs] == ["float32[8, 32]"]
    assert list(operation.kernels.buffers) == ["in0", "out0"]
    (spec,) = operation.specs
    assert [buffer.shape for buffer in (*spec.inputs, *spec.outputs)] == [(8, 32)] * 2
    assert spec.register_bytes > 0
    assert spec.block == (32,)
    assert spec.flags == ("rows",)


@pytest.mark.parametrize("kind", RUNS_HERE)
def test_28_a_compiled_kernel_has_binary_launch_and_metrics_and_runs(kind: str) -> None:
    backend = fw.fusion_backends.get(kind)
    (operation,) = backend.operations(chain())
    kernel = backend.compile(operation, level=0)
    assert kernel.id.startswith(f"{kind}-")
    assert kernel.binary
    assert kernel.format.startswith(f"{kind}/")
    assert kernel.metadata["engine"]
    assert kernel.metrics["compile_ms"] > 0
    assert kernel.metrics["bytes"] >= len(kernel.binary)
    assert kernel.metrics["level"] == 0
    (launched,) = kernel.kernels
    assert launched.grid
    assert launched.parameters
    inputs = inputs_of(operation.graph)
    verdict = judge_op(operation.graph, inputs, [kernel.run(*inputs)])
    assert verdict.status == "right", verdict.reason


@pytest.mark.parametrize("kind", RUNS_HERE)
@pytest.mark.parametrize("pattern", SAMPLES)
def test_29_every_kernel_of_a_pattern_is_run_and_judged(kind: str, pattern: str) -> None:
    backend = fw.fusion_backends.get(kind)
    operations = backend.operations(sample(pattern))
    assert operations[-1].pattern.name == pattern
    for operation in operations:
        inputs = inputs_of(operation.graph)
        verdict = judge_op(operation.graph, inputs, [backend.compile(operation).run(*inputs)])
        assert verdict.status == "right", verdict.reason


def test_30_fusion_backends_report_what_they_were_seen_to_do() -> None:
    ours = fw.fusion_backends.get("webgpu").capabilities
    assert set(ours.patterns) == set(SAMPLES)
    assert ours.autotunes
    assert {"float32", "int8"} <= {of.name for of in ours.dtypes}
    theirs = fw.fusion_backends.get("xla").capabilities
    assert "elementwise" in theirs.patterns
    assert "convolution + activation" not in theirs.patterns
    assert theirs.caches_binaries
    assert not theirs.autotunes


class Doubling(FusionBackend):
    """A type that a user adds: it fuses nothing but chains that it was made for."""

    kind = "doubling"
    capabilities = FusionCapabilities(("doubled",), (), False, False, False, False)

    def fuse(self, graph: Graph, **options: Any) -> Fusion:
        return fw.fuse(graph, patterns=[Pattern("doubled", ("add", "multiply"))])

    def compile(self, operation: FusedOperation, **options: Any) -> CompiledKernel:
        return CompiledKernel("doubling-1", operation, b"code", "doubling/source", {}, {}, {})


def test_30_a_type_that_a_user_registers_is_known_to_fuse() -> None:
    fw.fusion_backends.register("doubling", Doubling)
    try:
        graph = fw.trace(lambda x: (x + x) * x, fw.Spec((3,), "float32"))
        assert dict(fw.fuse(graph, "doubling").patterns) == {"doubled": 1}
        assert fw.fusion_backends.get("doubling") is fw.fusion_backends.get("doubling")
        assert fw.fusion_backends.find(graph) is fw.fusion_backends.get("doubling")
        assert "doubling" in fw.fusion_backends.names()
        kernel = fw.fusion_backends.get("doubling").compile(
            fw.fusion_backends.get("doubling").operations(graph)[0]
        )
        with pytest.raises(RefusedError, match="does not run kernels"):
            kernel.run(np.ones(3, np.float32))
        with pytest.raises(RegistryError, match="already"):
            fw.fusion_backends.register("doubling", Doubling)
    finally:
        fw.fusion_backends.unregister("doubling")
    with pytest.raises(RegistryError, match="There is no fusion backend 'doubling'"):
        fw.fuse(graph, "doubling")


def test_30_find_names_no_engine_that_does_not_fuse() -> None:
    found = fw.fusion_backends.find(sample("convolution + activation"))
    assert found is not None
    assert found.refusal(sample("convolution + activation")) is None
    assert found.kind != "xla"
    two = fw.trace(lambda x: (np.sort(x), np.cumsum(x)), fw.Spec((8,), "float32"))
    assert fw.fusion_backends.find(two) is None


def test_30_the_registry_is_safe_under_threads() -> None:
    backends = FusionBackends()
    made: list[FusionBackend] = []
    failed: list[str] = []

    def work(number: int) -> None:
        try:
            backends.register("same", NoFusion)
        except RegistryError as error:
            failed.append(str(error))
        made.append(backends.get("same"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 7
    assert len(set(map(id, made))) == 1


TUNE = """
import fusewire as fw
from fusewire.fusion.samples import sample
backend = fw.fusion_backends.get("webgpu")
(operation,) = backend.operations(sample("softmax"))
for budget in (10, 30, 90):
    kernels = backend.tune(operation, budget_seconds=budget)
    if kernels and not any(kernel.is_late for kernel in kernels):
        break
compiled = backend.compile(operation)
print([(x.key, dict(x.chosen)) for x in kernels], dict(compiled.config.options), compiled.id)
print({x.cache for x in kernels})
"""


def test_31_what_was_tuned_survives_the_process_and_is_used(tmp_path: Path) -> None:
    environment = {**os.environ, "FUSEWIRE_CACHE": str(tmp_path)}

    def tuned() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", TUNE], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first, again = tuned(), tuned()
    assert first[1] == "{''}"
    assert again == [first[0], "{'hit'}"]


def test_errors_say_what_does_not_fit() -> None:
    backend = fw.fusion_backends.get("xla")
    (operation,) = backend.operations(chain())
    kernel = backend.compile(operation)
    x = np.ones((4, 6), np.float32)
    with pytest.raises(ShapeMismatchError, match="has 2 inputs"):
        kernel.run(x)
    with pytest.raises(ShapeMismatchError, match=r"found float64\[4, 6\]"):
        kernel.run(x, x.astype(np.float64))
    with pytest.raises(OptionsError, match="levels are 0, 1, 2 and 3"):
        backend.compile(operation, level=4)
    with pytest.raises(OptionsError, match="xla compiles for no such device"):
        backend.compile(operation, target="cuda:sm_90")
    with pytest.raises(RegistryError, match="xla was asked for tpu and has cpu"):
        backend.compile(operation, device="tpu")
    with pytest.raises(RefusedError, match="no kernel of this"):
        backend.tune(operation)


def test_a_kernel_runs_the_indices_that_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may change the caller's array between the check and the run."""
    backend = fw.fusion_backends.get("xla")
    table, indices = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([0, 2])
    graph = fw.trace(lambda t, i: np.exp(np.take(t, i, axis=0)) * 2, table, indices)
    kernel = backend.compile(backend.operations(graph)[0])
    check = Checks.check

    def check_and_change(checks: Checks, values: Any) -> None:
        check(checks, values)
        indices[:] = 1

    monkeypatch.setattr(Checks, "check", check_and_change)
    assert np.allclose(kernel.run(table, indices), np.exp(table[[0, 2]]) * 2)
    assert (indices == 1).all()


def test_a_kernel_for_a_device_elsewhere_tells_what_it_takes_and_does_not_run() -> None:
    backend = fw.fusion_backends.get("triton")
    (operation,) = backend.operations(sample("softmax"))
    kernel = backend.compile(operation, target="cuda:sm_90")
    (launched,) = kernel.kernels
    assert launched.block == (128,)
    assert launched.registers is not None
    assert launched.shared_bytes is not None
    with pytest.raises(RefusedError, match="cuda:sm_90, which is not here"):
        kernel.run(np.ones((8, 32), np.float32))
