"""Open a bundle: make a program of it that neither searches nor measures.

From a signer whom the user believes, and on a machine like the writer's, artifacts are loaded as
they are. Otherwise the bundle is data: the engine that it names compiles its graph here, in a
child process, and the first answer is judged. That is recorded, so that it happens once.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fusewire.bundling import save
from fusewire.contract.backend import Config
from fusewire.errors import (
    BundleWarning,
    FormatError,
    GraphError,
    SignatureError,
    StoreError,
    UnknownSignerError,
    warn_outside,
)
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.options import BUNDLED, EXACT, FALLBACK, OptionFields, Options
from fusewire.plan.plan import Plan
from fusewire.program.entry import Entry
from fusewire.program.origin import Origin
from fusewire.program.parameters import InputNames
from fusewire.program.program import Program
from fusewire.records.bundles import Bundle, statement_of
from fusewire.records.keys import bundle_key
from fusewire.records.plans import SavedPlan
from fusewire.records.recall import Recalled, recall
from fusewire.session.context import CompileContext, reference_target
from fusewire.session.warm_start import WarmStart
from fusewire.store.disk import shared_store
from fusewire.store.key import Key
from fusewire.store.signing import AllowedSigners, Statement, signer_of
from fusewire.system.hardware import quarter_of_machine, usable_cores

if TYPE_CHECKING:
    from fusewire.contract.frontend import Reading
    from fusewire.contract.model_file import ModelFile
    from fusewire.planning.planner import Planned

_MOST_PROGRAMS = 4096
_OURS = "fusewire.backends."
# What artifacts depend on, in words.
_FIELDS = {
    "its_engine": "the version of {}",
    "its_library": "the build of {}",
    "its_cpu": "the processor",
    "code": "the version of Fusewire",
    "lowering": "the version of Fusewire",
}


def open(
    path: str | os.PathLike[str], *, release: str | None = None, **fields_: Unpack[OptionFields]
) -> Program:
    """Open a bundle (.fw) that ``Program.save`` or ``fusewire compile`` wrote.

    Nothing is searched or measured. If the bundle is signed by somebody in ``allowed_signers``, its
    artifacts are loaded; otherwise, and on a machine that they do not fit, its engine compiles its
    graph here, and the first answer is checked. A BundleWarning says so. Options replace those that
    it was saved with; without a believed signer, these make the reader's limits smaller and do
    nothing else. Raises FormatError if it is damaged, and SignatureError if its signature is
    forged, expired or revoked. With a ``release``, a bundle that is not signed as one of that name
    is refused, too, and so is one that is older than one that was opened here before.
    """
    return _program(opened_bundle(path, fields_, release))


def _program(opened: OpenedBundle) -> Program:
    opened.check_release()
    about, options = opened.about, opened.options
    entries = [opened.plan(number).entry() for number in range(len(about.programs))]
    names = InputNames(about.name, lambda: [str(value.name) for value in entries[0].inputs])
    program = Program(
        about.name,
        opened.refuse,
        entries,
        parameters=names,
        casts=options.cast == "same_kind",
        compares=False,
    )
    asked = (opened.release,)
    program.origin = Origin(opened.bundle.path, asked, options, open_again, save)
    return program


def open_again(path: Any, example: tuple[Any, ...], options: Options) -> Program:
    """Open the bundle of a program that was pickled or forked; ``example`` is its release."""
    (release,) = example
    return open(path, release=release, **_given(options))


def open_copies(
    path: str | os.PathLike[str], options: Options, count: int, release: str | None = None
) -> list[Program]:
    """Make several programs of a bundle that is read into memory once.

    They outlive whatever is done to the file: a process whose mapped file becomes shorter dies.
    """
    bundle = Bundle.open(path, copies=True)
    return [_program(_opened(bundle, _given(options), release)) for _ in range(count)]


def _given(options: Options) -> dict[str, Any]:
    return {x.name: getattr(options, x.name) for x in fields(Options)}


def opened_bundle(
    path: str | os.PathLike[str], given: Mapping[str, Any] = {}, release: str | None = None
) -> OpenedBundle:
    """Open a bundle with the options in it, or those that are given."""
    store = shared_store() if given.get("cache", True) else None
    return _opened(Bundle.open(path, store), given, release)


def _opened(bundle: Bundle, given: Mapping[str, Any], release: str | None) -> OpenedBundle:
    return OpenedBundle(bundle, BundleAbout.of(bundle), given, release)


def limited_by(own: Options, said: Options) -> Options:
    """Run what a bundle of anybody names within the reader's options, and within smaller limits.

    Accuracy, casts, options of engines and all else that loosens what is promised are the reader's.
    """
    most = {
        "max_crossings": math.inf,
        "max_fallback_share": math.inf,
        "budget_seconds": math.inf,
        "threads": usable_cores(),
        "memory_limit": quarter_of_machine(),
    }
    smaller = {}
    for name, bound in most.items():
        allowed, asked = getattr(own, name), getattr(said, name)
        if asked is not None and asked < (bound if allowed is None else allowed):
            smaller[name] = asked
    fallback = "error" if said.fallback == "error" else own.fallback
    return replace(own, backend=said.backend, device=said.device, fallback=fallback, **smaller)


@dataclass(frozen=True)
class BundleAbout:
    """What a bundle says about its programs, checked."""

    name: str
    options: Mapping[str, Any]
    # The digest of a plan's key, and the section of its graph.
    programs: tuple[tuple[str, str], ...]
    source: Mapping[str, str] | None

    @staticmethod
    def of(bundle: Bundle) -> BundleAbout:
        """Read it; FormatError if it is malformed."""
        try:
            about = BundleAbout.read(bundle.head.about)
        except (KeyError, TypeError):
            about = None
        if about is None:
            raise FormatError(f"{bundle.path} has a malformed header.")
        return about

    @staticmethod
    def read(about: Mapping[str, Any]) -> BundleAbout | None:
        """Read a header; KeyError, TypeError or None if it is malformed."""
        name, source = about["name"], about["source"]
        # Those of 0.1 are exact, and do not say so.
        options = {"accuracy": EXACT, "nan": Options().nan, **about["options"]}
        programs = tuple((row["plan"], row["graph"]) for row in about["programs"])
        texts = [name, *(text for pair in programs for text in pair)]
        if source is not None:
            texts += [source[x] for x in ("name", "path", "sha256")]
        is_good = (
            all(isinstance(text, str) for text in texts)
            and _is_policy(options["backend"])
            and set(options) == set(BUNDLED)
            and isinstance(options["backend_config"], dict)
            and 0 < len(programs) <= _MOST_PROGRAMS
        )
        return BundleAbout(name, options, programs, source) if is_good else None


def _is_policy(backend: object) -> bool:
    """Tell whether a program with such a backend can be saved: a name, or several in order."""
    if not isinstance(backend, list):
        return isinstance(backend, str)
    is_text = all(isinstance(name, str) for name in backend)
    return is_text and 1 < len(backend) == len({*backend} - {"auto", FALLBACK})


@dataclass(frozen=True, eq=False)
class OpenedBundle:
    """A bundle with the options that its reader gave, and who vouches for it."""

    bundle: Bundle
    about: BundleAbout
    given: Mapping[str, Any]
    release: str | None = None

    @cached_property
    def options(self) -> Options:
        """The options to run it: those of its signer, if one is believed, under those given.

        SignatureError if its signature is forged, expired, revoked, or for something else.
        """
        said = Options.of(None, self.about.options)
        if self.doubt:
            said = limited_by(Options(), said)
        return Options.of(said, self.given)

    def check_release(self) -> None:
        """Raise SignatureError unless it is the release that is asked for, if one is."""
        if self.release is not None and self.doubt:
            raise SignatureError(
                f"{self.bundle.path} was asked for as a release of {self.release}, and nobody who "
                f"is believed says so: {self.doubt.rstrip('.')}."
            )

    @cached_property
    def doubt(self) -> str:
        """Why the bundle is only data; empty if a believed signer vouches for it.

        SignatureError if its signature is forged, expired, revoked, or for something else.
        """
        if not self.bundle.head.signature:
            return "it is not signed"
        # What is recorded here is where the reader says, whatever else a bundle says.
        store = CompileContext(Options.of(None, self.given)).records.store
        try:
            AllowedSigners.read().verify(
                self.bundle.head.signature, self._statement, store, self.release
            )
        except UnknownSignerError as error:
            return str(error)
        return ""

    @property
    def signer(self) -> str:
        """The public key that signed it, believed or not; empty if none did.

        SignatureError if it did not, whatever the signature says.
        """
        signature = self.bundle.head.signature
        return signer_of(signature, self._statement) if signature else ""

    @property
    def _statement(self) -> Statement:
        plans = [plan for plan, _ in self.about.programs]
        return statement_of(self.bundle.head.digest, plans)

    def plan(self, number: int) -> BundledPlan:
        """Return a plan of the bundle."""
        return BundledPlan(self, number)

    def refuse(self, arguments: tuple[Any, ...]) -> Entry:
        """Say that nothing is compiled for other arguments."""
        raise GraphError(f"{self.bundle.path} has no program for these arguments.")

    @cached_property
    def context(self) -> CompileContext:
        """What this machine has recorded itself."""
        return CompileContext(self.options)

    def graph(self, number: int) -> Graph:
        """Read a graph of the bundle; weights that are not in it come from the model file."""
        text = self.bundle.text(self.about.programs[number][1])
        if text is None:
            raise FormatError(f"{self.bundle.path} has no graph {number}.")
        from fusewire.ir.text import parse_graph
        from fusewire.ops.table import verify

        weights = {x: _constant(x, array) for x, array in self.bundle.constants.items()}
        if not weights and self.about.source is not None:
            weights = self._constants_of_source()
        graph = parse_graph(text, weights)
        verify(graph)
        return graph

    @property
    def file(self) -> ModelFile | None:
        """The model file, for an engine that reads it; None if the bundle has the weights."""
        has_source = self.about.source is not None and not self.bundle.has_constants
        return self._reading.file if has_source else None

    def _constants_of_source(self) -> dict[str, Constant]:
        """Return the weights in the model file, as read and as rewritten."""
        from fusewire.contract.model_file import known_constants
        from fusewire.rewrite.pipeline import run_pipeline

        known = known_constants(self._reading.graph, self._reading.file)
        return {**known, **known_constants(run_pipeline(self._reading.graph).graph, None)}

    @cached_property
    def _reading(self) -> Reading:
        """The model file, which must be the one that the bundle was made of."""
        from fusewire.session.model_source import ModelSource
        from fusewire.store.stamps import file_digest

        source = self.about.source
        assert source is not None, "the caller asked"
        beside = self.bundle.path.resolve().parent / Path(source["name"]).name
        # Only a believed signer may have us open a file elsewhere.
        places = [beside] if self.doubt else [beside, Path(source["path"])]
        for place in places:
            if (
                place.is_file()
                and file_digest(place, self.context.records.store) == source["sha256"]
            ):
                reading = ModelSource(place).read()
                if reading.digest == source["sha256"]:
                    return reading
        raise FormatError(
            f"The weights of {self.bundle.path} are in {source['name']} (SHA-256 "
            f"{source['sha256'][:16]}...), which is not beside it. Put it there, or save the "
            "bundle with its weights."
        )


def _constant(digest: str, array: Array) -> Constant:
    """Wrap a weight of a bundle; GraphError if it is not the one that its digest says.

    Artifacts are recorded under the digests of weights: a wrong one would answer for others.
    """
    constant = Constant.of(array)
    return Constant(constant.type, partial(_checked, constant, digest), digest)


def _checked(constant: Constant, digest: str) -> Array:
    if constant.digest != digest:
        raise GraphError(f"The weights {digest[:16]}... of a bundle have another digest.")
    return constant.array


@dataclass(frozen=True, eq=False)
class BundledPlan:
    """One plan of a bundle. It plans again what a saved plan does not contain."""

    opened: OpenedBundle
    number: int

    @cached_property
    def key(self) -> Key:
        """The key of the plan in the bundle."""
        digest = self.opened.about.programs[self.number][0]
        key = next((x for x in self.opened.bundle.keys if x.digest == digest), None)
        if key is None or key.kind != "plan":
            raise FormatError(f"{self.opened.bundle.path} has no plan {self.number}.")
        return key

    @cached_property
    def graph(self) -> Graph:
        return self.opened.graph(self.number)

    @cached_property
    def _bundled(self) -> Recalled:
        """The plan as the bundle has it, with the artifacts in it."""
        context = CompileContext(self.opened.options, bundle=self.opened.bundle)
        return Recalled(self.key, context.records, _Planner(WarmStart(context), self))

    @cached_property
    def saved(self) -> SavedPlan:
        try:
            saved = self._bundled.saved
        except StoreError:
            raise FormatError(f"The plan in {self.opened.bundle.path} is malformed.") from None
        if saved.superseded:
            return saved
        names = {FALLBACK, *(x.backend for x in saved.choice.places)}
        # The class of a backend is imported by its name.
        if set(saved.targets) != names or not all(
            target.reference.startswith(_OURS) for target in saved.targets.values()
        ):
            raise FormatError(f"The plan in {self.opened.bundle.path} uses unknown backends.")
        return saved

    def entry(self) -> Entry:
        """Make the entry: of the artifacts in the bundle, of what was rebuilt here, or to rebuild.

        SignatureError if somebody tampered with the signature.
        """
        opened = self.opened
        doubt = opened.doubt or self.saved.superseded or self._misfit()
        if not doubt:
            planner = self._bundled.planner
            assert isinstance(planner, _Planner)
            return planner.warm.entry_of(self._bundled, opened.about.name)
        warm = WarmStart(opened.context)
        key = self._local_key
        recalled = recall(
            opened.context.records, key, opened.options, lambda key: _Planner(warm, self)
        )
        if recalled is not None:
            return warm.entry_of(recalled, opened.about.name)
        if not self.saved.superseded:
            # Otherwise the first call says that engines are compared, and why.
            warn_outside(
                f"{opened.bundle.path} is used as data: {doubt}. {self.saved.engine_names} "
                "compiles it here, and its first answer is checked.",
                BundleWarning,
            )
        from fusewire.bundling.rebuilding import undecided_entry

        return undecided_entry(opened.context, self.graph, self.saved, key, doubt)

    @cached_property
    def _local_key(self) -> Key:
        """The key of what was rebuilt on this machine."""
        digest = f"{self.opened.bundle.head.digest} {self.number}"
        return bundle_key(hashlib.sha256(digest.encode()).hexdigest(), self.opened.options)

    def _misfit(self) -> str:
        """Say how this machine differs from that of the artifacts; empty if they fit."""
        opened, saved = self.opened, self.saved
        graph = dict(self.key.fields).get("file", "")
        if bundle_key(graph, opened.options) == self.key:
            environments = [target.is_same_environment for target in saved.targets.values()]
            return "" if all(environments) else "variables that its engine reads differ"
        from fusewire.records.keys import backend_fields
        from fusewire.registry import REGISTRY

        for name, target in saved.targets.items():
            installed = name in REGISTRY.backends.names() and REGISTRY.backends.get(name)
            if not installed or not installed.info.is_installed:
                return f"{name} is not installed here"
            config = saved.choice.config(opened.options.config, name)
            config = Config() if name == FALLBACK else config
            here = dict(backend_fields(installed, target.device, config))
            sentences = [
                f"{_FIELDS.get(field, field).format(name)} is another one here"
                for field, text in target.fields
                if here.get(field) != text
            ]
            if sentences:
                return ", ".join(dict.fromkeys(sentences))
        return ""


@dataclass(frozen=True, eq=False)
class _Planner:
    """Plans a bundle again, if a call or a user needs what its plan lacks."""

    warm: WarmStart
    plan: BundledPlan

    def planned(self, saved: SavedPlan) -> Planned:
        """Plan the graph on the target, and in the form, that was chosen."""
        from fusewire.planning.candidates import plan_choice

        targets = self.warm.load_targets(saved)
        may_fall_back = self.warm.context.options.fallback != "error"
        file, choice = self.plan.opened.file, saved.choice
        if file is None and choice.form == "file":
            # Only to explain it: what a call needs is in the bundle.
            choice = replace(choice, form="native")
        graph, fallback = self.plan.graph, reference_target()
        return plan_choice(choice, graph, targets, fallback, may_fall_back, file)

    def plan_body(self, saved: SavedPlan, body: Graph) -> Plan:
        """Plan a body of control flow."""
        from fusewire.session.candidate_entries import BodyPlanner, CandidateEntries

        entries = CandidateEntries(self.warm.context)
        return BodyPlanner(entries, self.warm.load_targets(saved), None).plan(body)
