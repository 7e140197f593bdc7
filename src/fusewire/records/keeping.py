"""Write down how a program runs, so that another process runs it without planning it again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from fusewire.choosing.decide import Choice
from fusewire.contract.backend import Backend, Config
from fusewire.contract.frontend import Reading, Structure
from fusewire.contract.region import weights_of
from fusewire.ir.graph import Graph
from fusewire.ir.text import constants_of
from fusewire.planning.candidates import Candidate
from fusewire.planning.claims import Home
from fusewire.records.keys import artifact_fields, backend_fields, body_key
from fusewire.records.remember import Memory
from fusewire.records.sketch import Sketch, Station
from fusewire.registry import REGISTRY
from fusewire.runtime.plan import HOST, Course, Outline
from fusewire.runtime.why import Tried
from fusewire.store.key import Key


@dataclass(frozen=True)
class Keeping:
    """Keeps plans under the key of a file; those of other people's backends are not kept."""

    memory: Memory
    key: Key
    home: Home
    spare: Home
    config: Config

    @property
    def is_ours(self) -> bool:
        """Whether the backends are of this package: others may change without our noticing."""
        names = (self.home.name, self.spare.name)
        return all(REGISTRY.backends.describe(x).distribution == "fusewire" for x in names)

    @cached_property
    def _stations(self) -> Mapping[str, Station]:
        spare = _station(self.spare.backend, self.spare, Config())
        return {
            self.spare.name: spare,
            self.home.name: _station(self.home.backend, self.home, self.config),
        }

    def keep(
        self,
        reading: Reading,
        found: Candidate,
        tried: Sequence[Tried],
        cut_at: float | None,
        said: Sequence[str],
    ) -> None:
        """Keep the plan of a graph."""
        plan, results = found.planned.plan, reading.results
        self._keep_texts(plan.course)
        sketch = Sketch(
            tuple((v.name or "", v.type) for v in plan.graph.inputs),
            results.names,
            results.tree is Structure.LEAF,
            self.home.name,
            len(plan.graph.nodes),
            self._stations,
            lambda *_: plan.course,
            Choice.of(found).to_data(),
            [asdict(row) for row in tried],
            cut_at,
            tuple(said),
        )
        self.memory.keep_sketch(self.key, sketch)

    def keep_body(self, body: Graph, course: Course) -> None:
        """Keep the plan of a body of control flow, in which sizes are known."""
        self._keep_texts(course)
        self.memory.keep_course(body_key(self.key, body), course)

    def _keep_texts(self, course: Course) -> None:
        """Keep what the host runs: what compiling it takes is its graph."""
        for step in course.steps:
            if step.outline.backend in (HOST, self.spare.name):
                self._keep_text(step.outline)
            for body in step.bodies.values():
                self._keep_texts(body)

    def _keep_text(self, outline: Outline) -> None:
        graph, spare = outline.region.graph, self.spare
        artifact = spare.backend.compile(graph, spare.device, Config())
        fields = artifact_fields(outline, (), self._stations[spare.name].fields)
        # The bodies of what the host drives run elsewhere, with their weights.
        is_whole = outline.backend != HOST
        weights = weights_of(artifact, constants_of(graph)) if is_whole else {}
        self.memory.keep_artifact(Key("artifact", fields), artifact, weights)


def _station(backend: Backend, home: Home, config: Config) -> Station:
    return Station(
        REGISTRY.backends.describe(home.name).reference,
        home.device,
        backend_fields(backend, home.device, config),
        {name: os.environ.get(name) for name in backend.info.environment},
    )
