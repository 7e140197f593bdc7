"""PyTorch in eager mode as a Fusewire backend, from outside the tree."""

from importlib.metadata import version
from typing import Any, final

from fusewire import backend as fb

# Our name of an op, and torch's of a function that means the same on the same operands.
TABLE = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "maximum",
    "minimum": "minimum", "negative": "neg", "abs": "abs", "sqrt": "sqrt", "exp": "exp",
    "log": "log", "log1p": "log1p", "expm1": "expm1", "sin": "sin", "cos": "cos", "tanh": "tanh",
    "erf": "erf", "sigmoid": "sigmoid", "floor": "floor", "ceil": "ceil", "matmul": "matmul",
}  # fmt: skip
DTYPES = ("float32", "float64", "int32", "int64")


def refuses(node: Any) -> str | None:
    """Say why a node cannot run here."""
    if node.op not in TABLE:
        return f"{node.op} is not in the table; it has {', '.join(TABLE)}."
    wrong = [v.tensor.dtype.name for v in node.operands if v.tensor.dtype.name not in DTYPES]
    return f"{wrong[0]} is not taken; cast to one of {', '.join(DTYPES)}." if wrong else None


@final
class Eager(fb.Executable):
    is_reentrant = True

    def __init__(self, graph: Any) -> None:
        import torch

        self.torch, self.graph = torch, graph
        self.held = {v: torch.tensor(v.constant.array) for v in graph.constants}

    def run(self, inputs: Any, into: fb.Into = ()) -> list[Any]:
        given = [self.torch.from_numpy(x.copy()) for x in inputs]
        values = self.held | dict(zip(self.graph.inputs, given, strict=True))
        for node in self.graph.nodes:
            function = getattr(self.torch, TABLE[node.op])
            values[node.outputs[0]] = function(*[values[v] for v in node.operands])
        return [values[v].numpy().copy() for v in self.graph.outputs]


@final
class TorchBackend(fb.Backend):
    info = fb.BackendInfo(
        "torch-eager",
        version("torch"),
        "PyTorch, eager.",
        "an example",
        (3, 0),
    )
    gaps = ()
    exchange = fb.Exchange()
    lowerings = TABLE  # extensions may add to it

    def probe(self) -> Any:
        return [fb.Device("cpu", "PyTorch")]

    def claim(self, graph: Any, device: fb.Device) -> Any:
        return fb.claim_by_table(graph, refuses, shapes="dynamic")

    def compile(self, region: Any, device: fb.Device, config: Any) -> fb.Artifact:
        config.checked("torch-eager", ())
        slots = (*fb.edge_slots(region), *fb.weight_slots(region, fb.INLINE_BYTES + 1))
        return fb.Artifact("rebuild", fb.print_graph(region).encode(), slots)

    def load(self, artifact: fb.Artifact, device: fb.Device, weights: Any) -> Eager:
        held = {digest: fb.Constant.of(array) for digest, array in weights.items()}
        return Eager(fb.parse_graph(artifact.payload.decode(), held))
