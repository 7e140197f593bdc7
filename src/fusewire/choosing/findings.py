"""What is known of the candidates of one graph: verdicts, times, and what is held against them.

Verdicts are about a graph with its weights. Times are about its structure: the same graph with
other weights is not timed again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fusewire.choosing.judge import Judgement
from fusewire.choosing.measure import Comparison
from fusewire.contract.backend import Config
from fusewire.contract.region import weights_of
from fusewire.errors import StoreError
from fusewire.ir.graph import Graph
from fusewire.ir.hash import exact_hash, structural_hash
from fusewire.ir.text import constants_of
from fusewire.ops.sample import HostValue
from fusewire.planning.candidates import Candidate
from fusewire.records.entries import Records
from fusewire.records.keys import artifact_key, host_fields
from fusewire.records.quarantine import Fact, quarantine, quarantined
from fusewire.runtime.regions import shape_of
from fusewire.store.key import Key
from fusewire.trials.trial import CandidateTrial


class Findings:
    """Reads and writes what is known, for one graph, on inputs of these sizes."""

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[HostValue],
        records: Records,
        config: Config,
        deadline: float,
    ) -> None:
        self._graph = graph
        self.records = records
        self._config = config
        self._deadline = deadline
        self._shapes = [shape_of(x) for x in inputs]
        self._sizes = " ".join(f"{shape}" for shape in self._shapes)

    @cached_property
    def exact(self) -> str:
        """The hash of the graph with its weights."""
        return exact_hash(self._graph)

    def artifact(self, candidate: Candidate) -> Key | None:
        """Name the artifact of a candidate that is one region."""
        plan = candidate.planned.plan
        if not plan.is_whole or candidate.target.backend.info.trusted:
            return None
        region, config = plan.steps[0].region, candidate.config(self._config)
        return artifact_key(region, self._shapes, candidate.target.backend, config)

    def _subject(self, candidate: Candidate) -> Key | None:
        """Name what facts are held against: an artifact, or a plan of several."""
        if candidate.target.backend.info.trusted:
            return None
        return self.artifact(candidate) or self._verdict(candidate)

    def fault(self, candidate: Candidate) -> str | None:
        """Say what is held against a candidate."""
        key = self._subject(candidate)
        fact = None if key is None else quarantined(self.records, key, self._deadline)
        return None if fact is None else fact.sentence()

    def blame(self, candidate: Candidate, code: str, reason: str) -> None:
        """Hold something against a candidate, if it is of the kind that stays true."""
        self.hold(candidate, Fact(code, reason))

    def hold(self, candidate: Candidate, fact: Fact) -> None:
        """Hold a fact against a candidate."""
        if (key := self._subject(candidate)) is not None:
            quarantine(self.records, key, replace(fact, seconds=self._deadline))

    @property
    def folder(self) -> Path | None:
        """Where things lie that people look at; None where nothing is kept."""
        store = self.records.store
        return None if store is None or store.is_off else store.path

    def keep_artifact(self, trial: CandidateTrial) -> None:
        """Keep what a child compiled, so that it is loaded and not made again."""
        candidate = trial.candidate
        if (key := self.artifact(candidate)) is None:
            return
        artifact = trial.contact.artifact
        region = candidate.planned.plan.steps[0].region.graph
        self.records.keep_artifact(key, artifact, weights_of(artifact, constants_of(region)))

    def verdict(self, candidate: Candidate) -> Judgement | None:
        """Recall how a candidate was judged."""
        held = self.records.get(self._verdict(candidate))
        if held is None:
            return None
        try:
            return Judgement.from_data(json.loads(held))
        except (StoreError, ValueError, RecursionError):
            self.records.drop(self._verdict(candidate))
            return None

    def keep_verdict(self, candidate: Candidate, judged: Judgement) -> None:
        """Keep how a candidate was judged; that it was not is no news."""
        if judged.status == "wrong":
            self.blame(candidate, "wrong", judged.reason)
        elif judged.status != "not judged":
            payload = json.dumps(judged.to_data()).encode()
            self.records.put(self._verdict(candidate), payload)

    def _verdict(self, candidate: Candidate) -> Key:
        fields = candidate.fields(self._config)
        return Key.of("verdict", graph=self.exact, sizes=self._sizes, **fields)

    def times(self, candidates: Sequence[Candidate]) -> Comparison | None:
        """Recall a comparison of these very candidates."""
        held = self.records.get(self._times(candidates))
        if held is None:
            return None
        try:
            found = Comparison.from_data(json.loads(held))
        except (StoreError, ValueError, RecursionError):
            found = None
        # Anybody may have measured this: it speaks of these candidates, or it is none.
        if found is None or set(found.timings) != {candidate.name for candidate in candidates}:
            self.records.drop(self._times(candidates))
            return None
        return found

    def keep_times(self, candidates: Sequence[Candidate], found: Comparison) -> None:
        """Keep a comparison."""
        self.records.put(self._times(candidates), json.dumps(found.to_data()).encode())

    def _times(self, candidates: Sequence[Candidate]) -> Key:
        fields = sorted(
            json.dumps(candidate.fields(self._config), sort_keys=True) for candidate in candidates
        )
        named = dict(host_fields())
        graph = structural_hash(self._graph)
        return Key.of(
            "measurement", graph=graph, sizes=self._sizes, candidates=" ".join(fields), **named
        )
