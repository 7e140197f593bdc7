"""Records about the candidates of one graph: verdicts, times, faults and artifacts.

Verdicts depend on the graph with its weights. Times depend on its structure: the same graph with
other weights is not timed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fusewire.choosing.judge import Judgement
from fusewire.choosing.measure import Comparison
from fusewire.contract.backend import Artifact, Config
from fusewire.contract.extension import holds_added_ops
from fusewire.contract.model_file import known_constants
from fusewire.contract.region import weights_of
from fusewire.errors import StoreError
from fusewire.ir.dims import Symbol, evaluate
from fusewire.ir.graph import Graph, HostValue
from fusewire.ir.hash import exact_hash, structural_hash
from fusewire.ir.types import TensorType, Type, type_symbols
from fusewire.ops.interpret import bind
from fusewire.plan.fitting import as_compiled
from fusewire.plan.regions import shape_of
from fusewire.planning.candidates import Candidate
from fusewire.records.entries import Records
from fusewire.records.keys import artifact_key, host_fields
from fusewire.records.quarantine import Fact, quarantine, quarantined, reconsider, release
from fusewire.store.code_state import meanings_state
from fusewire.store.key import Key
from fusewire.trials.trial import CandidateTrial


class Findings:
    """Reads and writes the records of one graph, for inputs of these sizes.

    ``accuracy`` names what the user accepts of candidates that compute in less than the model's own
    dtypes; what cannot be named is not recorded.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[HostValue],
        records: Records,
        config: Config,
        deadline: float,
        accuracy: str | None = None,
    ) -> None:
        self._graph = graph
        self.records = records
        self._config = config
        self._deadline = deadline
        self._accuracy = accuracy
        self._measures_again = False
        self._shapes = [shape_of(x) for x in inputs]
        self._sizes = " ".join(f"{shape}" for shape in self._shapes)

    @cached_property
    def exact(self) -> str:
        """The hash of the graph with its weights."""
        return exact_hash(self._graph)

    @cached_property
    def _meanings(self) -> str:
        return meanings_state(self._graph)

    def artifact_key(self, candidate: Candidate) -> Key | None:
        """Return the key of the artifact, if the candidate is one region."""
        plan = candidate.planned.plan
        target = candidate.target_of(plan.steps[0].region) if plan.is_whole else None
        if target is None or target.backend.info.trusted:
            return None
        config = candidate.config(self._config, target)
        region = as_compiled(plan.steps[0].region, config)
        return artifact_key(region, self._shapes, target.backend, config)

    def _subject(self, candidate: Candidate) -> Key | None:
        """Return the key that faults are recorded for: an artifact, or a plan of several."""
        if all(target.backend.info.trusted for target in candidate.engines):
            return None
        return self.artifact_key(candidate) or self._verdict_key(candidate)

    def fault(self, candidate: Candidate) -> str | None:
        """Say why a candidate is in quarantine; None if it is not."""
        key = self._subject(candidate)
        fact = None if key is None else quarantined(self.records, key, self._deadline)
        return None if fact is None else fact.sentence()

    def reconsider(self, candidate: Candidate) -> bool:
        """Forget what is known of a candidate with an imported fault; False if it has none."""
        key = self._subject(candidate)
        if key is None or not reconsider(self.records, key):
            return False
        self.records.drop(self._verdict_key(candidate))
        return True

    def blame(self, candidate: Candidate, code: str, reason: str) -> None:
        """Put a candidate into quarantine, if the fault is one that would recur."""
        self.quarantine(candidate, Fact(code, reason))

    def quarantine(
        self, candidate: Candidate, fact: Fact, engines: Sequence[str] | None = None
    ) -> None:
        """Put a candidate into quarantine for a fault; ``engines`` are to blame, if that is known.

        If a plan of several regions is wrong, each of their artifacts may be to blame, and whoever
        builds a region looks for the fault of its artifact only: all of them are put there.
        """
        if (subject := self._subject(candidate)) is None:
            return
        others = self._region_keys(candidate, engines) if fact.code == "wrong" else ()
        named = candidate.name if engines is None else " + ".join(engines)
        known = replace(fact, seconds=self._deadline, model=self.records.model, candidate=named)
        for key in dict.fromkeys((subject, *others)):
            quarantine(self.records, key, known)

    def _release(self, candidate: Candidate) -> None:
        """Take a candidate out of quarantine that was tried all the same, and is right."""
        if (subject := self._subject(candidate)) is not None:
            for key in dict.fromkeys((subject, *self._region_keys(candidate))):
                release(self.records, key)

    def _region_keys(
        self, candidate: Candidate, engines: Sequence[str] | None = None
    ) -> Iterator[Key]:
        """Yield the keys of the artifacts, but those whose sizes only a run determines."""
        sizes: dict[Symbol, int] = {}
        for value, shape in zip(self._graph.inputs, self._shapes, strict=True):
            if isinstance(value.type, TensorType):
                bind(value.type, shape, sizes, f"The input {value.name}")
        for region in candidate.planned.plan.regions():
            target = candidate.target_of(region)
            if target is None or (engines is not None and target.name not in engines):
                continue
            shapes = [_shape(value.type, sizes) for value in region.inputs]
            config = candidate.config(self._config, target)
            region = as_compiled(region, config)
            if region.shapes == "dynamic" or None not in shapes:
                known = [shape for shape in shapes if shape is not None]
                yield artifact_key(region, known, target.backend, config)

    @property
    def folder(self) -> Path | None:
        """The folder of files for people to read; None if nothing is recorded."""
        store = self.records.store
        return None if store is None or store.is_off else store.path

    def keep_artifact(self, trial: CandidateTrial) -> None:
        """Record the artifact that a child compiled, so that nobody compiles it again."""
        candidate = trial.candidate
        if (key := self.artifact_key(candidate)) is None:
            return
        artifact = trial.contact.artifact
        region = candidate.planned.plan.steps[0].region
        target = candidate.target_of(region)
        if target is not None and holds_added_ops(region.graph, target.backend):
            # Whoever builds the region judges its kernels first, one by one.
            return
        known = known_constants(region.graph, region.file)
        self.records.keep_artifact(key, artifact, weights_of(artifact, known))

    def keep_slow_artifact(self, trial: CandidateTrial) -> None:
        """Record what took long to compile, whoever wins; without weights, which others have."""
        if (key := self._slow_key(trial.candidate)) is not None:
            self.records.keep_artifact(key, trial.contact.artifact, {})

    def slow_artifact(self, candidate: Candidate) -> Artifact | None:
        """Recall what took long to compile; None if there is none, or compiling is quick."""
        key = self._slow_key(candidate)
        stored = None if key is None else self.records.artifact(key)
        return None if stored is None else stored[0]

    def drop_slow_artifact(self, candidate: Candidate) -> None:
        """Forget an artifact that could not be run."""
        if (key := self._slow_key(candidate)) is not None:
            self.records.drop(key)

    def _slow_key(self, candidate: Candidate) -> Key | None:
        is_slow = any(target.backend.info.is_slow for target in candidate.engines)
        return self.artifact_key(candidate) if is_slow else None

    def verdict(self, candidate: Candidate) -> Judgement | None:
        """Recall the verdict on a candidate."""
        if candidate.is_reduced and self._accuracy is None:
            return None
        payload = self.records.get(self._verdict_key(candidate))
        if payload is None:
            return None
        try:
            return Judgement.from_data(json.loads(payload))
        except (StoreError, ValueError, RecursionError):
            self.records.drop(self._verdict_key(candidate))
            return None

    def keep_verdict(
        self, candidate: Candidate, judged: Judgement, engines: Sequence[str] | None = None
    ) -> None:
        """Record the verdict on a candidate if it is certain; others depend on the inputs.

        If it is wrong, ``engines`` are to blame, as far as that is known. One that is not accurate
        enough may be for somebody else.
        """
        if candidate.is_reduced and self._accuracy is None:
            return
        if judged.status == "wrong":
            self.quarantine(candidate, Fact("wrong", judged.reason), engines)
        elif judged.status == "right":
            payload = json.dumps(judged.to_data()).encode()
            self.records.put(self._verdict_key(candidate), payload)
            self._release(candidate)

    def _verdict_key(self, candidate: Candidate) -> Key:
        fields = candidate.fields(self._config)
        if candidate.is_reduced:
            fields["accuracy"] = self._accuracy or "unnamed"
        if self._meanings:
            fields["ops"] = self._meanings
        return Key.of("verdict", graph=self.exact, sizes=self._sizes, **fields)

    def times(self, candidates: Sequence[Candidate]) -> Comparison | None:
        """Recall a comparison of exactly these candidates."""
        if self._measures_again:
            return None
        payload = self.records.get(self._times_key(candidates))
        if payload is None:
            return None
        names = {candidate.name for candidate in candidates}
        try:
            comparison = Comparison.from_data(json.loads(payload))
        except (StoreError, ValueError, RecursionError):
            comparison = None
        # Another process wrote this record: it must be about these candidates.
        if comparison is None or set(comparison.timings) != names:
            self.records.drop(self._times_key(candidates))
            return None
        return comparison

    def measure_again(self) -> None:
        """Recall no times from now on."""
        self._measures_again = True

    def keep_times(self, candidates: Sequence[Candidate], comparison: Comparison) -> None:
        """Record a comparison."""
        self.records.put(self._times_key(candidates), json.dumps(comparison.to_data()).encode())

    def _times_key(self, candidates: Sequence[Candidate]) -> Key:
        fields = sorted(
            json.dumps(candidate.fields(self._config), sort_keys=True) for candidate in candidates
        )
        host = dict(host_fields())
        graph = structural_hash(self._graph)
        return Key.of(
            "measurement", graph=graph, sizes=self._sizes, candidates=" ".join(fields), **host
        )


def _shape(type_: Type, sizes: Mapping[Symbol, int]) -> tuple[int, ...] | None:
    """Return the shape of a type for these sizes; None if they do not determine it."""
    if not isinstance(type_, TensorType):
        return ()
    if any(symbol not in sizes for symbol in type_symbols(type_)):
        return None
    return tuple(evaluate(dim, sizes) for dim in type_.shape)
