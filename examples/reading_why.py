"""Ask a program why it runs as it does: which engines were tried, and who runs which node.

python examples/reading_why.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fusewire as fw


def attention(query: Any, key: Any, value: Any) -> Any:
    """Attend with one head."""
    scores = query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5
    e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return {"mixed": (e / np.sum(e, axis=-1, keepdims=True)) @ value, "scores": scores}


def main() -> None:
    """Compare engines, then look at the choice, at the nodes, and at a refusal."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((128, 64)).astype(np.float32) for _ in range(3))
    program = fw.compile(attention, start="measured", budget_seconds=3)
    result = program.run(query=q, key=k, value=v)
    print("outputs by name:", {name: array.shape for name, array in result.by_name.items()})

    # Printed, it is tables; behind them is data.
    why = program.why()
    print(f"\n{why}")
    for candidate in why.tried:
        if candidate.reason:
            print(f"{candidate.name}: {candidate.status}. {candidate.reason}")

    print("\nits nodes:")
    for place in range(len(program.plan.graph.nodes)):
        node = program.why(place)
        print(f"  {node.place:>2} {node.op:12} on {node.backend}, from {node.source}")

    # An engine that refuses a node says why. With fallback="allow" the reference runs that node.
    split = fw.compile(
        lambda x: np.linalg.svdvals(np.exp(x)), backend="onnxruntime", fallback="allow"
    )
    split(x=np.eye(3, dtype=np.float32))
    print("\nverdicts on the nodes of another program:")
    for place in range(len(split.plan.graph.nodes)):
        node = split.why(place)
        for verdict in node.verdicts:
            answer = "offers to run it" if verdict.is_offered else f"refuses: {verdict.reason}"
            print(f"  {node.op:8} {verdict.backend}: {answer}")

    # All of it is data: save it with a result, or attach it to a bug report.
    print(f"\n{len(why.to_json())} characters of JSON")


if __name__ == "__main__":
    main()
