"""One step of an optimizer: ops of ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, scalar
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import logic
from fusewire.ops.elementwise import add, divide, multiply, power, sqrt, square, subtract

# Makes the new x and its new states of the rate, the count of steps, x, its gradient, its states.
_Update = Callable[[OnnxCall, Value, Value, Sequence[Value]], list[Value]]


def _regularized(call: OnnxCall, x: Value, gradient: Value) -> Value:
    factor = call.attr("norm_coefficient", 0.0)
    return add(multiply(x, factor), gradient)


def _adagrad(call: OnnxCall, rate: Value, count: Value, of: Sequence[Value]) -> list[Value]:
    x, gradient, squares = of
    rate = divide(rate, add(multiply(count, call.attr("decay_factor", 0.0)), 1.0))
    slope = _regularized(call, x, gradient)
    squares = add(squares, square(slope))
    root = add(sqrt(squares), call.attr("epsilon", 1e-6))
    return [subtract(x, divide(multiply(rate, slope), root)), squares]


def _adam(call: OnnxCall, rate: Value, count: Value, of: Sequence[Value]) -> list[Value]:
    x, gradient, mean, squares = of
    alpha, beta = call.attr("alpha", 0.9), call.attr("beta", 0.999)
    slope = _regularized(call, x, gradient)
    mean = add(multiply(mean, alpha), multiply(slope, 1.0 - alpha))
    squares = add(multiply(squares, beta), multiply(square(slope), 1.0 - beta))
    root = add(sqrt(squares), call.attr("epsilon", 1e-6))
    left = [subtract(1.0, power(_constant(count, factor), count)) for factor in (alpha, beta)]
    grown = divide(multiply(rate, sqrt(left[1])), left[0])
    rate = logic.where(logic.greater(count, 0.0), grown, rate)
    moved = subtract(x, divide(multiply(rate, mean), root))
    return [multiply(moved, 1.0 - call.attr("norm_coefficient_post", 0.0)), mean, squares]


def _constant(like: Value, number: float) -> Value:
    return add(multiply(like, 0.0), number)


def _momentum(call: OnnxCall, rate: Value, count: Value, of: Sequence[Value]) -> list[Value]:
    x, gradient, speed = of
    alpha, mode = call.needed("alpha"), call.needed("mode")
    slope = _regularized(call, x, gradient)
    beta = logic.where(logic.greater(count, 0.0), _constant(count, call.needed("beta")), 1.0)
    speed = add(multiply(speed, alpha), multiply(slope, beta))
    way = add(slope, multiply(speed, alpha)) if mode == "nesterov" else speed
    return [subtract(x, multiply(way, rate)), speed]


def _optimizer(step: _Update, states: int) -> Read:
    """Make the converter of an optimizer that keeps so many states beside x and its gradient."""

    def convert(call: OnnxCall) -> Converted:
        rate, count, *rest = call.rest
        tensors = len(rest) // (states + 2)
        made = []
        for place in range(tensors):
            of = rest[place::tensors]
            one, steps = (cast(scalar(v) or v, of[0].tensor.dtype) for v in (rate, count))
            made.append(step(call, one, steps, of))
        return [v for column in zip(*made, strict=True) for v in column]

    return convert


READERS: Mapping[str, Read] = {
    "ai.onnx.preview.training:Adagrad": _optimizer(_adagrad, 1),
    "ai.onnx.preview.training:Adam": _optimizer(_adam, 2),
    "ai.onnx.preview.training:Momentum": _optimizer(_momentum, 1),
}
