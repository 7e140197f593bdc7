"""An op of a package for a custom domain, which tests of refusals register."""

from fusewire import declare as fd

OPS = fd.OpPackage("refusal_ops")


def _scaled_type(x: fd.TensorType, *, by: float = 2.0) -> fd.TensorType:
    return x


scaled = OPS.declare(
    "scaled",
    _scaled_type,
    doc="Multiply by a number.",
    reference=lambda x, *, by: x * by,
    dtypes=fd.FLOATS,
    samples=lambda: [fd.sample(fd.draw(3))],
    onnx="com.refusals:Scaled",
)
