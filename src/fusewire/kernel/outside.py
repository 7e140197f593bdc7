"""Kernels of packages outside the tree: source, launch and configurations, as data.

A kernel is bound to an op by the lowerings of an extension (``contract.extension``). It reads the
op's operands and writes its outputs, all of them dense and row-major; sizes, attributes and the
numbers of the chosen configuration are constants in its text. A backend prints it beside our own
kernels, which are fused around it, and the core times, judges and records it like those.
"""

from __future__ import annotations

import abc
import ast
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar, final

from fusewire.dtypes import DType, float32
from fusewire.errors import RefusedError, RegistryError
from fusewire.ir.graph import Attr, Node
from fusewire.ir.types import TensorType
from fusewire.kernel.form import KernelBuffer, OutsideCall
from fusewire.ops.table import get_op

# More would be timed longer than anybody waits; printers know no higher number.
MOST_CONFIGURATIONS = 16
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MAIN = re.compile(r"\bfn\s+main\s*\(")
_TARGET = re.compile(r"(cuda:sm_\d+|hip:gfx\w+)")
Refuses: TypeAlias = Callable[[Node], str | None]


@dataclass(frozen=True)
class Cover:
    """As many workgroups or programs as cover a tensor, each of which takes ``by`` elements.

    ``by`` is a number, or the name of one in the configuration. With ``axes``, only the elements
    along these axes are counted.
    """

    of: str
    by: int | str = 1
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Launched(abc.ABC):
    """What all kernels have: the names of their tensors, their grid, and what may be chosen.

    ``inputs`` and ``outputs`` name the operands and outputs of the op in the source, in order. The
    first of the ``configurations`` is what runs untuned. ``refuses`` says why a node is not taken.
    """

    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    grid: tuple[int | Cover, ...]
    configurations: tuple[Mapping[str, int], ...] = ({},)
    dtypes: tuple[DType, ...] = (float32,)
    refuses: Refuses | None = field(default=None, kw_only=True)

    @property
    @abc.abstractmethod
    def language(self) -> str:
        """What it is written in."""


@final
@dataclass(frozen=True)
class WgslKernel(_Launched):
    """A kernel in WGSL: functions, of which ``fn main`` is the entry point.

    Bindings are declared for it: ``inputs`` and ``outputs`` are arrays in storage memory, and there
    are ``x_size`` and, unless it is a scalar, ``x_shape`` of each, the attributes of the op and the
    numbers of the configuration. ``workgroup`` has one to three numbers, or names of them.
    """

    workgroup: tuple[int | str, ...] = field(default=(64,), kw_only=True)

    @property
    def language(self) -> str:
        """What it is written in."""
        return "WGSL"

    def __post_init__(self) -> None:
        _check(self)
        if len(_MAIN.findall(self.source)) != 1:
            raise _wrong(self, "its source needs exactly one `fn main(`.")
        if "@compute" in self.source:
            raise _wrong(self, "leave @compute out: it is written from `workgroup`.")
        if not 1 <= len(self.workgroup) <= 3:
            raise _wrong(self, f"workgroup={self.workgroup} has not one to three sizes.")
        _check_sizes(self, self.workgroup)

    @property
    def parts(self) -> tuple[str, str]:
        """The source before its entry point, and from there on."""
        at = next(_MAIN.finditer(self.source)).start()
        return self.source[:at], self.source[at:]

    def sized(self, configuration: Mapping[str, int]) -> tuple[int, ...]:
        """Give the workgroup of a configuration, in three dimensions."""
        sizes = [configuration[x] if isinstance(x, str) else x for x in self.workgroup]
        return (*sizes, *([1] * (3 - len(sizes))))


@final
@dataclass(frozen=True)
class TritonBinary:
    """The code of a kernel that Triton compiled for one target: NEVER RUN by us, for want of a GPU.

    ``name`` is the function in it, ``shared`` its bytes of shared memory. A program has ``warps``
    of ``threads`` threads. It takes a pointer per tensor, and then what Triton adds: two pointers.
    """

    kind: Literal["cubin", "hsaco"]
    data: bytes
    name: str
    shared: int
    warps: int
    threads: int = 32


@final
@dataclass(frozen=True)
class TritonKernel(_Launched):
    """A kernel in Triton: the text of one function over pointers, without its decorator.

    Its parameters are ``inputs`` and ``outputs``. Constants are there as in WGSL; ``x_shape`` is
    spelled ``x_shape0``, ``x_shape1``. ``binaries`` has compiled code by target, such as
    cuda:sm_90, which is used there in place of the text; it is of the first configuration.
    """

    warps: int | str = field(default=4, kw_only=True)
    stages: int | str = field(default=0, kw_only=True)
    binaries: Mapping[str, TritonBinary] = field(default_factory=dict, kw_only=True)

    @property
    def language(self) -> str:
        """What it is written in."""
        return "Triton"

    def __post_init__(self) -> None:
        _check(self)
        if len(self.grid) != 1:
            raise _wrong(self, f"grid={self.grid}: programs are numbered in one dimension.")
        _check_sizes(self, (self.warps,))
        parameters = [argument.arg for argument in self.function.args.args]
        if parameters != [*self.inputs, *self.outputs]:
            raise _wrong(
                self,
                f"its function takes {', '.join(parameters)}; expected "
                f"{', '.join((*self.inputs, *self.outputs))}.",
            )
        if unknown := [x for x in self.binaries if not _TARGET.fullmatch(x)]:
            raise _wrong(self, f"{unknown[0]!r} is not a target such as cuda:sm_90.")

    @property
    def function(self) -> ast.FunctionDef:
        """The function, parsed and never executed."""
        try:
            body = ast.parse(self.source).body
        except SyntaxError as error:
            raise _wrong(self, f"its source cannot be parsed: {error}.") from None
        if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
            raise _wrong(self, "its source is not one function.")
        if body[0].decorator_list:
            raise _wrong(self, "leave @triton.jit out: it is written for you.")
        return body[0]


Source = TypeVar("Source", WgslKernel, TritonKernel)


def _check(kernel: _Launched) -> None:
    names = (*kernel.inputs, *kernel.outputs)
    if not kernel.outputs or len({*names}) < len(names):
        raise _wrong(kernel, f"its tensors {', '.join(names)} need an output, and distinct names.")
    if wrong := [x for x in names if not _WORD.fullmatch(x) or x.endswith(("_size", "_shape"))]:
        raise _wrong(kernel, f"{wrong[0]!r} cannot be the name of a tensor.")
    if unused := [x for x in names if not re.search(rf"(?<![.\w]){x}\b", kernel.source)]:
        raise _wrong(kernel, f"its source never uses {', '.join(unused)}.")
    listed = [sorted(x) for x in kernel.configurations]
    if not 1 <= len(listed) <= MOST_CONFIGURATIONS or any(x != listed[0] for x in listed):
        raise _wrong(
            kernel,
            f"it needs 1 to {MOST_CONFIGURATIONS} configurations, all with the same names.",
        )
    for chosen in kernel.configurations:
        for name, value in chosen.items():
            if not _WORD.fullmatch(name) or type(value) is not int or value < 0:
                raise _wrong(kernel, f"{name}={value!r} is not a name and a number.")
    if taken := _collision(kernel.configurations[0], names):
        raise _wrong(kernel, f"its configurations name {taken}. Rename it there.")
    if not 1 <= len(kernel.grid) <= 3:
        raise _wrong(kernel, f"grid={kernel.grid} has not one to three sizes.")
    covers = [x for x in kernel.grid if isinstance(x, Cover)]
    if strange := [x.of for x in covers if x.of not in names]:
        raise _wrong(kernel, f"the grid covers {strange[0]!r}, which is not a tensor of it.")
    sizes = [x.by if isinstance(x, Cover) else x for x in kernel.grid]
    _check_sizes(kernel, sizes)


def _collision(names: Iterable[str], tensors: Sequence[str]) -> str | None:
    """Say which of these names a tensor of a kernel, or a constant about one, has; None if none."""
    for name in names:
        base = re.sub(r"_(size|shape\d*)$", "", name)
        if name in tensors:
            return f"{name!r}, which is a tensor of it"
        if base != name and base in tensors:
            return f"{name!r}, which is a constant about its tensor {base}"
    return None


def _check_sizes(kernel: _Launched, sizes: Sequence[int | str]) -> None:
    for size in sizes:
        for chosen in kernel.configurations:
            value = chosen.get(size) if isinstance(size, str) else size
            if type(value) is not int or value < 1:
                raise _wrong(kernel, f"{size!r} is not a number from 1 on, nor named so.")


def _wrong(kernel: _Launched, problem: str) -> RegistryError:
    return RegistryError(f"A kernel in {kernel.language} is not declared as it must be: {problem}")


def digest_of(kernel: _Launched) -> str:
    """Tell a kernel from any other one: what was made of it depends on all of its data."""
    data = {key: value for key, value in vars(kernel).items() if key != "refuses"}
    return hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()[:16]


@final
class KernelTable(MutableMapping[str, Source], Generic[Source]):
    """The kernels that extensions bring to a backend, by op; each is checked as it is added."""

    def __init__(self, kind: type[Source]) -> None:
        self._kind: type[Source] = kind
        self._kernels: dict[str, Source] = {}

    def __setitem__(self, name: str, kernel: Source) -> None:
        if not isinstance(kernel, self._kind):
            found = type(kernel).__name__
            raise RegistryError(f"The kernel of {name} is a {found}, not a {self._kind.__name__}.")
        if "." not in name:
            raise RegistryError(
                f"{name} is an op of Fusewire, which has kernels of its own. Bind kernels to ops "
                "of your package."
            )
        operands, variadic, attributes = get_op(name).parameters
        if variadic is not None or len(operands) != len(kernel.inputs):
            takes = f"*{variadic}" if variadic else ", ".join(operands)
            raise RegistryError(
                f"The {self._kind.__name__} of {name} has the inputs {', '.join(kernel.inputs)}, "
                f"and the op takes {takes}."
            )
        tensors = (*kernel.inputs, *kernel.outputs)
        if taken := _collision(attributes, tensors):
            raise RegistryError(
                f"The op {name} has the attribute {taken} in its {self._kind.__name__}. Constants "
                "of a kernel need distinct names: rename the tensor."
            )
        both = [number for number in kernel.configurations[0] if number in attributes]
        if both:
            raise RegistryError(
                f"{both[0]!r} is an attribute of {name}, and a number in the configurations of its "
                f"{self._kind.__name__}: the source could not tell which it reads. Rename it in "
                "the configurations."
            )
        self._kernels[name] = kernel

    def __getitem__(self, name: str) -> Source:
        return self._kernels[name]

    def __delitem__(self, name: str) -> None:
        del self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    @property
    def digests(self) -> dict[str, str]:
        """What tells the kernels from others, by op."""
        return {name: digest_of(kernel) for name, kernel in self._kernels.items()}

    def of(self, call: OutsideCall) -> Source:
        """Find the kernel of a call; RefusedError if it is gone, or is another one by now."""
        kernel = self._kernels.get(call.op)
        if kernel is None or digest_of(kernel) != call.digest:
            raise RefusedError(
                f"The kernel of {call.op} that this was made with is not installed. Compile again."
            )
        return kernel


def node_refusal(kernel: _Launched, node: Node) -> str | None:
    """Say why a kernel does not take a node, whatever the device; None if it does."""
    if any(v is None for v in node.inputs):
        return f"The kernel of {node.op} needs all operands, and one is absent here."
    for value in (*node.operands, *node.outputs):
        if not isinstance(value.type, TensorType) or value.type.dtype not in kernel.dtypes:
            known = ", ".join(of.name for of in kernel.dtypes)
            return f"The kernel of {node.op} takes {known}, and there is {value.type} here."
    if len(node.outputs) != len(kernel.outputs):
        return (
            f"The kernel of {node.op} has {len(kernel.outputs)} outputs, not {len(node.outputs)}."
        )
    return None if kernel.refuses is None else kernel.refuses(node)


def buffers_of(kernel: _Launched, call: OutsideCall) -> dict[str, KernelBuffer]:
    """Give the tensors of a call by the names that they have in the source."""
    names = (*kernel.inputs, *kernel.outputs)
    return dict(zip(names, (*call.operands, *call.results), strict=True))


def chosen(kernel: _Launched, number: int) -> Mapping[str, int]:
    """Give a configuration by its number; the last stands for all that are not there."""
    return kernel.configurations[min(number, len(kernel.configurations) - 1)]


def grid_of(
    kernel: _Launched, buffers: Mapping[str, KernelBuffer], configuration: Mapping[str, int]
) -> tuple[int, ...]:
    """Count workgroups or programs in each dimension."""
    sizes = []
    for entry in kernel.grid:
        if isinstance(entry, int):
            sizes.append(entry)
            continue
        shape = buffers[entry.of].shape
        axes = range(len(shape)) if entry.axes is None else entry.axes
        count = math.prod(shape[axis] for axis in axes)
        by = configuration[entry.by] if isinstance(entry.by, str) else entry.by
        sizes.append(-(-count // by))
    return tuple(sizes)


def numbers_of(
    buffers: Mapping[str, KernelBuffer],
    attrs: Sequence[tuple[str, Attr]],
    configuration: Mapping[str, int],
) -> dict[str, Any]:
    """Give all constants of a call by name: sizes, attributes, and what was chosen."""
    sizes = {f"{name}_size": math.prod(buffer.shape) for name, buffer in buffers.items()}
    shapes = {f"{name}_shape": buffer.shape for name, buffer in buffers.items() if buffer.shape}
    plain = {name: value for name, value in attrs if isinstance(value, bool | int | float)}
    return {**sizes, **shapes, **plain, **configuration}
