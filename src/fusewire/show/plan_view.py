"""What ``program.explain()`` returns: a plan that shows itself, and writes itself to files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fusewire.errors import OptionsError
from fusewire.show.changes import PlanChange, changes
from fusewire.show.dot import to_dot
from fusewire.show.model_explorer import to_graph, to_node_data
from fusewire.show.netron import GONE, node_notes
from fusewire.show.page import in_frame, to_page
from fusewire.show.page_data import page_data
from fusewire.show.timeline import Timeline
from fusewire.show.why import Why


@dataclass(frozen=True, repr=False)
class PlanView:
    """A plan with its reasons, for people to look at.

    ``timeline`` is None unless ``explain`` was given arguments to run.
    """

    name: str
    why: Why
    timeline: Timeline | None = None

    @cached_property
    def changes(self) -> tuple[PlanChange, ...]:
        """What would be chosen without each engine of the plan, from the recorded race."""
        return tuple(changes(self.why.tried))

    def __repr__(self) -> str:
        return f"<PlanView of {self.name}: {self.why!r}>"

    def __str__(self) -> str:
        lines = [change.sentence() for change in self.changes]
        return "\n\n".join([str(self.why), *lines])

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data for JSON: that of ``why``, the timeline and the changes."""
        timeline = None if self.timeline is None else asdict(self.timeline)
        return {
            **self.why.to_data(),
            "timeline": timeline,
            "changes": [asdict(change) for change in self.changes],
        }

    def to_json(self) -> str:
        """Write the data as JSON."""
        return json.dumps(self.to_data(), indent=1)

    def to_html(self) -> str:
        """Write the page, which is whole in one file and loads nothing."""
        return to_page(page_data(self.name, self.why, self.timeline, self.changes))

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame that has no access to it."""
        return in_frame(self.to_html())

    def to_dot(self) -> str:
        """Write the graph in Graphviz's DOT language."""
        return to_dot(self.name, self.why)

    def to_model_explorer(self) -> dict[str, Any]:
        """Make the graph that Model Explorer opens as a JSON file."""
        return to_graph(self.name, self.why, self.timeline)

    def to_node_data(self) -> dict[str, Any]:
        """Make the node data that colours this graph by engine in Model Explorer."""
        return to_node_data(self.why)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, by the end of its name: .html, .json or .dot."""
        writers: Mapping[str, Callable[[Path], None]] = {
            ".html": self.save_html,
            ".json": self.save_json,
            ".dot": self.save_dot,
        }
        file = Path(path)
        if file.suffix not in writers:
            known = ", ".join(writers)
            raise OptionsError(f"A plan cannot be written to {file.name}: end its name in {known}.")
        writers[file.suffix](file)

    def save_html(self, path: Path) -> None:
        """Write the page."""
        path.write_text(self.to_html(), encoding="utf-8")

    def save_json(self, path: Path) -> None:
        """Write the data as JSON."""
        path.write_text(self.to_json(), encoding="utf-8")

    def save_dot(self, path: Path) -> None:
        """Write the graph in Graphviz's DOT language."""
        path.write_text(self.to_dot(), encoding="utf-8")

    def save_model_explorer(self, path: Path) -> None:
        """Write the graph for Model Explorer."""
        path.write_text(json.dumps(self.to_model_explorer()), encoding="utf-8")

    def save_node_data(self, path: Path) -> None:
        """Write the node data for Model Explorer."""
        path.write_text(json.dumps(self.to_node_data()), encoding="utf-8")

    def save_onnx(self, model: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
        """Copy the ONNX file that was compiled, with notes in its nodes, which Netron shows."""
        from fusewire.registry import REGISTRY

        notes = node_notes(self.why, self.timeline)
        REGISTRY.frontends.get("onnx").annotate(model, path, notes, GONE)
