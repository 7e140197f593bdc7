"""The options of a session, and what they open: records, targets, and children for engines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fusewire.errors import OptionsError, warn_outside
from fusewire.ir.graph import Graph
from fusewire.options import FALLBACK, Options
from fusewire.plan.plan import Plan
from fusewire.records.entries import Records
from fusewire.store.disk import Store, remote_address, shared_store
from fusewire.trials.build import BuildTarget, PlanBuilder

if TYPE_CHECKING:
    from fusewire.choosing.quiet import CallWatch
    from fusewire.planning.policy import TargetFinder
    from fusewire.planning.target import Target
    from fusewire.process.isolated import Services
    from fusewire.records.bundles import Bundle
    from fusewire.registry import Registry

LOG = logging.getLogger("fusewire")


@dataclass(frozen=True)
class CompileContext:
    """What every part of a session shares; each is opened when it is first needed."""

    options: Options = field(default_factory=Options)
    # Used instead of the user's store.
    store: Store | None = None
    # Tells when calls of a program disturb what is measured for it.
    watch: CallWatch | None = None
    # What it has is read before what is in the store.
    bundle: Bundle | None = None
    # Used instead of the one of the process.
    own_registry: Registry | None = None

    def __post_init__(self) -> None:
        if self.options.calibrate is not None and self.options.is_exact:
            raise OptionsError(
                "calibrate has samples for less precision, and the accuracy is exact. Give a bound "
                "too: fw.compile(..., accuracy=1e-2, calibrate=samples)."
            )

    @cached_property
    def registry(self) -> Registry:
        """The backends to choose from."""
        from fusewire.registry import REGISTRY

        return self.own_registry or REGISTRY

    @cached_property
    def records(self) -> Records:
        """The records of earlier processes, which this session adds to."""
        store = self.store or (shared_store() if self.options.cache else None)
        address = self.options.remote or remote_address()
        if store is not None:
            from fusewire.store.brought import believed

            store = believed(store)
        if store is not None and address is not None:
            start = time.monotonic()
            from fusewire.store.tier import with_remote

            # Whoever wants what is recorded, or an error, has nothing better to do than to wait.
            store = with_remote(store, address, start, is_patient=self.options.level == "recall")
        return Records(store, bundle=self.bundle)

    @cached_property
    def finder(self) -> TargetFinder:
        """Finds the targets of this machine."""
        from fusewire.planning.policy import TargetFinder

        has_slow = self.options.compares_slow_engines
        return TargetFinder(
            self.registry, self.options.has_children, self.options.limits, has_slow=has_slow
        )

    def start_engine(self) -> None:
        """Have the engine that is most likely wanted start in a child, while the caller is busy."""
        if not self.options.has_children:
            return
        registry = self.registry
        policy = registry.default if self.options.backend == "auto" else self.options.backend
        first = policy[0] if isinstance(policy, tuple) else policy
        is_named = isinstance(first, str) and first != "auto"
        registry.meet_ahead(str(first) if is_named else None, self.options.limits)

    @cached_property
    def services(self) -> Services | None:
        """The children in which engines stay; None if engines run in this process."""
        if self.options.isolate != "always":
            return None
        from fusewire.process.isolated import Services

        return Services(self.options.limits)

    @property
    def level(self) -> int:
        """The requested level; by default "auto" measures, and a named backend does not.

        Less precision must be measured, and so must shares of the time: whoever allows the one, or
        limits the other, asks for that.
        """
        options = self.options
        if options.level == "recall":
            return 1
        if options.level is not None:
            return options.level
        is_auto = options.backend == "auto" and self.registry.default == "auto"
        is_limited = options.max_fallback_share is not None
        measures = is_auto or not options.is_exact or is_limited
        return int(measures and options.budget_seconds > 0)

    def builder(
        self,
        first: BuildTarget,
        fallback: BuildTarget,
        plan_body: Callable[[Graph], Plan],
        *,
        others: Sequence[BuildTarget] = (),
        is_first: bool = False,
    ) -> PlanBuilder:
        """Make the builder of the regions of a plan, new or recalled."""
        options = self.options
        return PlanBuilder(
            first,
            fallback,
            options.fallback,
            options.deadline,
            self.records,
            plan_body,
            options.run_limits,
            services=self.services,
            is_first=is_first,
            others=tuple(others),
        )

    def say_if_cut_short(self, name: str, cut_at: float | None, notes: Sequence[str]) -> None:
        """Log what the comparison left out that a recalled plan comes from."""
        if cut_at is not None:
            LOG.info(
                "The plan recalled for %s comes from a comparison that was cut short after %g s. "
                "%s",
                name,
                cut_at,
                " ".join(notes),
            )

    def warn(self, notes: list[str], sentence: str) -> None:
        """Note a sentence, and warn of it if the options say so."""
        notes.append(sentence)
        if self.options.fallback == "warn":
            warn_outside(sentence)


def reference_target() -> Target:
    """Return the target of the reference backend, which runs every op."""
    from fusewire.contract.region import first_device
    from fusewire.planning.target import Target
    from fusewire.registry import REGISTRY

    backend = REGISTRY.backends.get(FALLBACK)
    return Target(backend, first_device(backend))
