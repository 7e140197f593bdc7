"""Entries for sizes that were learned: from the calls of a function, or where names do not hold."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from fusewire.background.first import FirstCall
from fusewire.contract.frontend import Reading
from fusewire.ir.graph import Graph
from fusewire.program.entry import Entry, LearnedSizes
from fusewire.session.context import reference_target
from fusewire.session.decider import Decider, EngineRunners
from fusewire.session.model_source import ModelSource
from fusewire.session.sizes import Opening, OpenTrace, differing_names, read_apart

LOG = logging.getLogger("fusewire")


def read_names_apart(model: ModelSource, arguments: tuple[Any, ...]) -> Reading | None:
    """Read the graph of a model in which a name of the file may stand for several sizes.

    None if no name does, so that the arguments misfit for another reason.
    """
    if isinstance(model.source, Graph) or model.needs_example:
        return None
    try:
        names = differing_names(list(model.inputs().items()), arguments)
        reading = read_apart(model, arguments) if names else None
    finally:
        model.release()
    if reading is None:
        return None
    LOG.warning(
        "%s has one name for sizes that differ (%s). It is compiled again with names that "
        "stand for one size each.",
        model.name,
        ", ".join(names),
    )
    return reading


def open_entry(
    decider: Decider, opened: OpenTrace, opening: Opening, arguments: tuple[Any, ...]
) -> Entry:
    """Make an entry with open sizes; the choice at the first sizes serves near those."""
    reading, graph = opened.reading, opened.graph
    if decider.context.level == 0:
        planned = decider.entries.planned_entry(reading, graph, None)
        learned = LearnedSizes(opened.allows, {}, lambda arguments: planned)
        return replace(planned, learned=learned)
    call = FirstCall(decider, reading, graph, None, None)
    baseline = decider.baseline(reading, EngineRunners(decider.entries))
    is_served = baseline is not None and baseline.may_serve
    interim = baseline.runner if baseline is not None and is_served else None

    def decide(arguments: tuple[Any, ...]) -> Entry:
        entry = call.entry(arguments)
        learned = LearnedSizes(opened.allows, entry.sizes(arguments), decide, interim)
        return replace(entry, learned=learned)

    first = LearnedSizes(opened.allows, opening.first_sizes, decide, interim)
    if not first.is_near(opening.sizes):
        return decide(arguments)
    entry = _entry_as_before(decider, opened)
    return decide(arguments) if entry is None else replace(entry, learned=first)


def _entry_as_before(decider: Decider, opened: OpenTrace) -> Entry | None:
    """Make the entry of what was decided at the first sizes; None if nothing was."""
    from fusewire.planning.candidates import plan_choice

    reading, engines = opened.reading, EngineRunners(decider.entries)
    question = decider.program_question(reading, opened.first_graph, opened.first_inputs, engines)
    decision = decider.recall(question)
    if decision is None:
        return None
    choice, targets = decision.candidate.choice(), decision.candidate.targets
    may_fall_back = decider.options.fallback != "error"
    planned = plan_choice(choice, opened.graph, targets, reference_target(), may_fall_back)
    candidate = replace(decision.candidate, planned=planned)
    note = "It was chosen at the sizes of an earlier call."
    decision = replace(decision, candidate=candidate, notes=(*decision.notes, note))
    return decider.settled_entry(reading, opened.graph, None, decision, question, engines)
