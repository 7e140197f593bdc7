"""PyTorch's higher-order ops: what it wraps, branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusewire.dtypes import bool_
from fusewire.errors import TraceError
from fusewire.ir.graph import Value
from fusewire.ops import control
from fusewire.ops.conversion import cast
from fusewire.ops.movement import reshape

if TYPE_CHECKING:
    from fusewire.frontends.torch.convert import ProgramConversion


def _tensors(what: str, given: Sequence[Any]) -> list[Value]:
    if not all(isinstance(x, Value) for x in given):
        raise TraceError(
            f"{what} is given a number that is not a tensor. Make it one with torch.tensor."
        )
    return list(given)


def _wrapped(at: int) -> Callable[..., Any]:
    """Take the place of a graph module in the arguments; what follows are its own arguments."""

    def convert(conversion: ProgramConversion, *arguments: Any) -> Any:
        return conversion.converted(arguments[at], arguments[at + 1 :])

    return convert


def _invoked(conversion: ProgramConversion, module: Any, name: str, *arguments: Any) -> Any:
    return conversion.converted(module, arguments)


def _cond(conversion: ProgramConversion, flag: Any, then: Any, otherwise: Any, given: Any) -> Any:
    if not isinstance(flag, Value):
        raise TraceError("torch.cond branches on a size. Compile for sizes that are numbers.")
    operands = _tensors("torch.cond", given)
    flag = reshape(flag if flag.tensor.dtype is bool_ else cast(flag, dtype=bool_), shape=())
    types = [v.type for v in operands]
    bodies = [conversion.body(module, types) for module in (then, otherwise)]
    return control.cond(flag, *operands, then=bodies[0], otherwise=bodies[1])


def _while(conversion: ProgramConversion, test: Any, body: Any, carried: Any, rest: Any) -> Any:
    operands = _tensors("while_loop", [*carried, *rest])
    types = [v.type for v in operands]
    return control.while_(
        *operands,
        condition=conversion.body(test, types, scalar=True),
        body=conversion.body(body, types),
        carries=len(carried),
    )


def _scan(conversion: ProgramConversion, body: Any, carried: Any, rows: Any, rest: Any) -> Any:
    return _scanned(conversion, body, carried, rows, rest)


def _map(conversion: ProgramConversion, body: Any, rows: Any, rest: Any) -> Any:
    return _scanned(conversion, body, (), rows, rest)


def _scanned(conversion: ProgramConversion, body: Any, carried: Any, rows: Any, rest: Any) -> Any:
    operands = _tensors("scan", [*carried, *rows, *rest])
    types = [v.tensor for v in operands]
    first = len(carried)
    for place in range(first, first + len(rows)):
        types[place] = types[place].with_shape(types[place].shape[1:])
    graph = conversion.body(body, types)
    return control.scan(*operands, body=graph, carries=first, scans=len(rows))


# By the names of the ops. What only tells autograd or autocast something is taken in.
HIGHER_ORDER: Mapping[str, Callable[..., Any]] = {
    "wrap_with_set_grad_enabled": _wrapped(1),
    "wrap_with_autocast": _wrapped(4),
    "wrap": _wrapped(0),
    "tag_activation_checkpoint": _wrapped(0),
    "wrap_activation_checkpoint": _wrapped(0),
    "invoke_subgraph": _invoked,
    "cond": _cond,
    "while_loop": _while,
    "scan": _scan,
    "map_impl": _map,
}
