"""What a user asks to compile, and how its graph is read: a function, a graph or a model file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, final

from fusewire.contract.frontend import Document, Example, Frontend, Limits, Reading, Structure
from fusewire.errors import TraceError
from fusewire.ir.graph import Graph
from fusewire.ir.types import Type
from fusewire.program.entry import Entry
from fusewire.program.parameters import FunctionParameters, InputNames, Parameters

if TYPE_CHECKING:
    from fusewire.contract.calling import Calling


@final
class ModelSource:
    """What a user asks to compile: a function, a graph or a model file.

    A file is opened when it is first needed and stays open until ``release``: listing its inputs
    and reading its graph parse and check it once.
    """

    def __init__(self, source: Any, limits: Limits = Limits()) -> None:
        self.source = source
        # The SHA-256 of a file, once it was computed.
        self.digest: str | None = None
        self._limits = limits
        self._document: Document | None = None

    @property
    def name(self) -> str:
        if isinstance(self.source, Graph):
            return self.source.name
        if self.is_file:
            return PurePath(os.fsdecode(self.source)).stem
        return getattr(self.source, "__name__", "program")

    @property
    def is_file(self) -> bool:
        return isinstance(self.source, str | os.PathLike)

    @property
    def needs_example(self) -> bool:
        """Whether the types of its arguments come from an example alone."""
        return not isinstance(self.source, Graph) and self._frontend.needs_example

    @cached_property
    def _frontend(self) -> Frontend:
        from fusewire.registry import REGISTRY

        return REGISTRY.frontend_for(self.source)

    def calling(self) -> Calling | None:
        """Return how a source is called that takes values of its own library, not arrays."""
        if isinstance(self.source, Graph) or self.is_file:
            return None
        return self._frontend.calling(self.source)

    def parameters(self, entries: Sequence[Entry]) -> Parameters:
        """Return what calls by name need; a model's entry names its inputs without reading it."""
        # A file declares its inputs, and finding its frontend takes time.
        if not self.is_file and self.needs_example:
            return FunctionParameters(self.source)
        if entries:
            return InputNames(self.name, lambda: [value.name or "" for value in entries[0].inputs])
        return InputNames(self.name, lambda: self._input_names)

    @cached_property
    def _input_names(self) -> tuple[str, ...]:
        names = tuple(self.inputs())
        self.release()
        return names

    def inputs(self) -> Mapping[str, Type]:
        """Return the declared arguments: their names and types."""
        if isinstance(self.source, Graph):
            return {value.name or "": value.type for value in self.source.inputs}
        return self._opened().inputs

    def read(
        self, example: Example = (), *, is_open: bool = False, digest: str | None = None
    ) -> Reading:
        """Read the graph; with ``is_open``, the example fixes only the sizes that must be known.

        ``digest`` is that of the expected file: an open document with another one is reopened.
        """
        if isinstance(self.source, Graph):
            _verify(self.source)
            names = tuple(value.name or "" for value in self.source.inputs)
            arguments = Structure((Structure.LEAF,) * len(names), names)
            results = Structure.of_results(self.source.output_names)
            return Reading(self.source, arguments, results)
        if self._document is not None and digest not in (None, self._document.digest):
            self.release()
        try:
            reading = self._opened().convert(example, is_open=is_open)
        except RecursionError:
            raise TraceError(
                f"{self.name} cannot be read: it, or the library that it calls, calls "
                "itself without end on what stands for its arguments. Transforms of other "
                "libraries (torch.func, jax) are given as the graphs that they make: "
                "make_fx(function)(*examples) for PyTorch."
            ) from None
        if not type(self._frontend).__module__.startswith("fusewire."):
            # Our own frontends check the graphs that they build.
            _verify(reading.graph)
        # The frontend names arguments after parameters; a program takes them by position.
        tree = tuple(reading.arguments.tree.values())
        return replace(reading, arguments=Structure(tree, reading.arguments.names))

    def release(self) -> None:
        """Close the document."""
        self._document = None

    def _opened(self) -> Document:
        if self._document is None:
            self._document = self._frontend.open(self.source, self._limits)
        return self._document


def _verify(graph: Graph) -> None:
    from fusewire.ops.table import verify

    verify(graph)
