"""Two ops from outside the tree: one made of other ops, one defined by NumPy.

import example_ops
example_ops.gelu2(x)                 # on arrays, and on traced values
example_ops.interleave(x, y)
"""

import numpy as np

from fusewire import declare as fd
from fusewire import ops

# The name is the namespace of the ops, and the name of the entry point.
OPS = fd.OpPackage("example_ops")


def _gelu2_type(x: fd.TensorType, *, slope: float = 1.702) -> fd.TensorType:
    fd.require(slope > 0, f"slope must be positive, found {slope}.")
    return x


def _gelu2(x: fd.Value, *, slope: float) -> fd.Value:
    gate: fd.Value = ops.sigmoid(ops.multiply(x, slope))
    result: fd.Value = ops.multiply(x, gate)
    return result


gelu2 = OPS.declare(
    "gelu2",
    _gelu2_type,
    doc="Multiply by a sigmoid: a quick approximation of gelu.",
    # It is made of other ops, so every backend runs it, fused with what is around it.
    expand=_gelu2,
    dtypes=fd.FLOATS,
    traits=(fd.Trait.ELEMENTWISE,),
    samples=lambda: [
        fd.sample(fd.draw(3, 4)),
        fd.sample(fd.draw()),
        fd.sample(fd.draw(0, 3)),
        fd.sample(fd.draw(257), slope=0.5),
    ],
    refuses=lambda: [fd.bad("slope must be positive", "[2]", slope=-1.0)],
    onnx="com.example:Gelu2",
)


def _interleave_type(x: fd.TensorType, y: fd.TensorType) -> fd.TensorType:
    fd.same_dtype(x, y)
    fd.require(x.rank > 0, "a scalar has no elements to interleave.")
    fd.require(x.shape == y.shape, f"the shapes must be equal, found {x} and {y}.")
    return x.with_shape((*x.shape[:-1], 2 * x.shape[-1]))


def _interleave(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([x, y], axis=-1).reshape(*x.shape[:-1], 2 * x.shape[-1])


interleave = OPS.declare(
    "interleave",
    _interleave_type,
    doc="Take elements of two tensors in turns, along the last axis.",
    # It is defined by NumPy: backends without a kernel for it leave it to the reference.
    reference=_interleave,
    dtypes=fd.FLOATS,
    tolerance=fd.EXACT,
    samples=lambda: [
        fd.sample(fd.draw(3, 4), fd.draw(3, 4)),
        fd.sample(fd.draw(0, 3), fd.draw(0, 3)),
        fd.sample(fd.draw(130), fd.draw(130)),
    ],
    lacks={
        "scalar": "a scalar has no last axis",
        "broadcast": "elements are taken in turns, so both tensors have one shape",
    },
    refuses=lambda: [
        fd.bad("the shapes must be equal", "[2]", "[3]"),
        fd.bad("a scalar has no elements", "[]", "[]"),
    ],
    onnx="com.example:Interleave",
)
