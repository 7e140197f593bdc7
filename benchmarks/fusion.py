"""What does fusion save? Kernels and bytes before and after, against the least possible.

    python benchmarks/fusion.py [--models NAME,NAME] [--picture F.svg] [--report F] [--counted]

Each pattern at a size that a model would have, and real models of the zoo (benchmarks/zoo/zoo.py
fetches them). Bytes are those that kernels read from and write to memory, each buffer once a
kernel; the least possible is inputs, weights and outputs once. ``--picture`` draws the first model
before and after: a box a kernel, as wide as the bytes that it moves. Then webgpu_kernels.py times
fused kernels against single ones on the WebGPU device that is here, unless ``--counted``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import fusewire as fw
from fusewire import ops
from fusewire.fusion.grouping import Fusion
from fusewire.fusion.growth import Growing
from fusewire.fusion.kinds import kind_of
from fusewire.ir.graph import Graph
from fusewire.ops.declare import Kind
from fusewire.rewrite.pipeline import run_pipeline

# The list of models and what fetches them.
sys.path.insert(0, str(Path(__file__).with_name("zoo")))
zoo: Any = import_module("zoo")
Shape = tuple[int, ...]
HIDDEN, ROWS = 768, 1024
COLORS = {
    "attention": "#7b3294", "softmax": "#c2a5cf", "layer norm": "#a6dba0", "rms norm": "#a6dba0",
    "convolution + batch norm": "#2166ac", "convolution + activation": "#4393c3",
    "linear + activation": "#92c5de", "reduction + elementwise": "#fdb863",
    "elementwise": "#e08214", "mixed": "#999999",
}  # fmt: skip


def chain(x: Any) -> Any:
    for _ in range(2):
        x = np.maximum((x + 1.0) * 0.5, 0.0) * x
    return x


def batch_norm(x: Any, w: Any, c: Any) -> Any:
    return ops.relu(ops.batch_norm(ops.conv(x, w, padding=((1, 1), (1, 1))), c, c, c, c))


PATTERNS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "8 elementwise, 10^7": (chain, ((10_000_000,),)),
    "convolution + relu": (
        lambda x, w, b: ops.relu(ops.conv(x, w, b, padding=((1, 1), (1, 1)))),
        ((8, 64, 56, 56), (64, 64, 3, 3), (64,)),
    ),
    "convolution + batch norm + relu": (
        batch_norm,
        ((8, 64, 56, 56), (64, 64, 3, 3), (64,)),
    ),
    "linear + gelu": (
        lambda x, w, b: ops.gelu(ops.linear(x, w, b)),
        ((ROWS, HIDDEN), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,)),
    ),
    "sum of squares, then root": (lambda x: np.sqrt(np.sum(x * x, -1)), ((ROWS, HIDDEN),)),
    "softmax": (lambda x: ops.softmax(x), ((8, 12, 128, 128),)),
    "layer norm + residual": (
        lambda x, y, s, b: ops.layer_norm(x + y, s, b),
        ((8, 128, HIDDEN), (8, 128, HIDDEN), (HIDDEN,), (HIDDEN,)),
    ),
    "rms norm": (lambda x, s: ops.rms_norm(x, s), ((ROWS, HIDDEN), (HIDDEN,))),
    "attention": (lambda q, k, v: ops.attention(q, k, v), ((8, 12, 128, 64),) * 3),
    "mixed: pool, scale, sigmoid": (
        lambda x: x * ops.sigmoid(ops.global_average_pool(x)),
        ((8, 64, 56, 56),),
    ),
}


def pattern_graph(name: str) -> Graph:
    """Trace a pattern."""
    function, shapes = PATTERNS[name]
    return fw.trace(function, *(fw.Spec(shape, "float32") for shape in shapes))


def model_graph(name: str) -> Graph:
    """Read a model of the zoo at its own sizes."""
    from fusewire.onnx.frontend import OnnxFrontend

    path, made = zoo.path(name), zoo.inputs(name)
    if not zoo.is_whole(name):
        raise SystemExit(f"{path} is missing: python benchmarks/zoo/zoo.py fetch {name}")
    order = OnnxFrontend().open(path, fw.Limits()).inputs
    return run_pipeline(fw.trace(str(path), *(made[key] for key in order))).graph


def row(name: str, fusion: Fusion) -> str:
    """Tell of one fusion: kernels, megabytes, and how far from the least."""
    before, after = fusion.before, fusion.after
    sizes = " | ".join(f"{n / 1e6:,.2f}" for n in (before.bytes, after.bytes, fusion.least))
    over = f"{before.bytes / fusion.least:.2f} | {after.bytes / fusion.least:.2f}"
    return f"| {name} | {before.launches} | {after.launches} | {sizes} | {over} |"


def table(rows: Iterable[str]) -> list[str]:
    """Head and lines of a table."""
    head = "| | kernels before | after | MB before | after | least | before/least | after/least |"
    return [head, "|---|---|---|---|---|---|---|---|", *rows]


def report(models: Sequence[str], fusions: dict[str, Fusion]) -> str:
    """Say what was found as Markdown."""
    lines = [
        "# Fusion: kernels and bytes",
        "",
        f"`python benchmarks/fusion.py`, {datetime.now(UTC):%Y-%m-%d}. Counted, not run: float32, "
        "sizes as in the source of the benchmark.",
        "",
        *table(row(name, fw.fuse(pattern_graph(name))) for name in PATTERNS),
        "",
        *table(row(name, fusions[name]) for name in models),
    ]
    for name in models:
        fusion = fusions[name]
        groups = ", ".join(f"{count} {pattern}" for pattern, count in fusion.patterns.items())
        reasons = sorted(fusion.refusals.items(), key=lambda item: -item[1])
        lines += ["", f"{name}: {groups}. Fusions refused, by reason:", ""]
        lines += [f"- {count}: {reason}" for reason, count in reasons]
    return "\n".join(lines)


def picture(name: str, fusion: Fusion) -> str:
    """Draw kernels before and after as rows of boxes, in order, as wide as their bytes."""
    group_of = {node: group for group in fusion.groups for node in group.nodes}
    alone: list[tuple[int, str]] = []
    for node in fusion.graph.nodes:
        if kind_of(node) is not Kind.FREE:
            single = Growing()
            single.start(node, kind_of(node))
            alone.append((single.work.bytes, group_of[node].pattern))
    joined = [(group.work.bytes, group.pattern) for group in fusion.groups]
    scale = 1500 / sum(size for size, _ in alone)
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1560 220" font-family="sans">']
    for top, title, boxes in ((40, "before", alone), (130, "after", joined)):
        total = sum(size for size, _ in boxes) / 1e6
        said = f"{name} {title}: {len(boxes)} kernels, {total:,.1f} MB"
        lines.append(f'<text x="20" y="{top - 10}" font-size="16">{said}</text>')
        left = 20.0
        for size, pattern in boxes:
            width = size * scale
            color = COLORS.get(pattern, "#dddddd")
            lines.append(
                f'<rect x="{left:.1f}" y="{top}" width="{width:.2f}" height="40" fill="{color}" '
                f'stroke="white" stroke-width="0.4"><title>{pattern}</title></rect>'
            )
            left += width
    for place, (pattern, color) in enumerate(COLORS.items()):
        x, y = 20 + 300 * (place % 5), 192 + 16 * (place // 5)
        lines.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        lines.append(f'<text x="{x + 15}" y="{y}" font-size="12">{pattern}</text>')
    return "\n".join([*lines, "</svg>"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what fusion saves.")
    parser.add_argument("--models", default="minilm-l3,resnet50-arc")
    parser.add_argument("--picture", type=Path, help="draw the first model before and after")
    parser.add_argument("--report", type=Path, help="write the figures to this file as well")
    parser.add_argument("--counted", action="store_true", help="time nothing")
    options = parser.parse_args()
    models = [name for name in options.models.split(",") if name]
    fusions = {name: fw.fuse(model_graph(name)) for name in models}
    text = report(models, fusions)
    print(text)
    if options.report is not None:
        options.report.write_text(text + "\n")
    if options.picture is not None:
        options.picture.write_text(picture(models[0], fusions[models[0]]) + "\n")
    if not options.counted:
        subprocess.run([sys.executable, Path(__file__).with_name("webgpu_kernels.py")], check=True)


if __name__ == "__main__":
    main()
