"""Write a folder with ``repro.py``, a script that shows the developers of an engine its fault.

The script needs NumPy and the engine, if the backend can write one (``script.Scripted``);
otherwise it also needs Fusewire.
"""

from __future__ import annotations

import io
import pprint
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.choosing.bisect import Culprit, engine, find_culprit
from fusewire.choosing.findings import Findings
from fusewire.contract.backend import Backend, Config, Device
from fusewire.contract.script import Script, Scripted
from fusewire.dtypes import dtype
from fusewire.errors import BudgetError, EngineError
from fusewire.ir.graph import Array, HostValue
from fusewire.ir.text import constants_of, print_graph
from fusewire.numerics.spread import Expected
from fusewire.ops.limits import RunLimits, limited
from fusewire.planning.candidates import Candidate
from fusewire.process.guard import described, guarded
from fusewire.records.quarantine import Fact
from fusewire.trials.trial import CandidateTrial, TrialRunner

_TEMPLATE = '''"""{headline}

{reason}

{nodes}

Written by Fusewire {version} on {date}. Run `python repro.py`: it exits with 1 while the fault
exists, and with 0 once it is fixed.
"""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
# Dtypes that NumPy does not have; their elements are stored as bytes.
TYPES = {types}


def read(file):
    arrays = dict(np.load(HERE / file))
    for name, dtype in TYPES.items():
        if name in arrays:
            import ml_dtypes

            arrays[name] = arrays[name].view(getattr(ml_dtypes, dtype))
    return arrays


{source}

def wrong(name, got, exact, within, skipped):
    if got.shape != exact.shape:
        return f"{{name}} has shape {{got.shape}}, expected {{exact.shape}}"
    got = got.astype(exact.dtype)
    with np.errstate(all="ignore"):
        fits = (got == exact) | (got != got) & (exact != exact)
        if exact.dtype.kind != "b":
            fits |= np.abs(got - exact) <= within
    off = ~(fits | skipped)
    if not off.any():
        return None
    place = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(off)))
    one, other, most = (np.atleast_1d(x)[place] for x in (got, exact, within))
    return (
        f"{{name}}{{list(place)}} is {{one}}, expected {{other}} within {{most:.2g}}; "
        f"{{int(off.sum())}} of {{off.size}} elements are off"
    )


def other(x):
    """Return another input of the same kind, to run in between."""
    return x if x.dtype.kind in "iub" and x.size <= 8 else np.roll(x, 1)


def main():
    arrays = read("arrays.npz")
    inputs = [arrays[f"input{{i}}"] for i in range({inputs})]
    run = load()
    for _ in range(3):
        for i, got in enumerate(run(inputs)):
            parts = [arrays[f"{{kind}}{{i}}"] for kind in ("exact", "within", "skipped")]
            problem = wrong(f"output{{i}}", np.asarray(got), *parts)
            if problem:
                print("WRONG:", problem)
                return 1
        run([other(x) for x in inputs])
    print("right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''
_FUSEWIRE = """from fusewire.contract.backend import Config
from fusewire.ir.graph import Constant
from fusewire.ir.text import parse_graph
from fusewire.process.trial import backend_of
from fusewire.contract.region import build, first_device


def load():
    constants = {{digest: Constant.of(x) for digest, x in read("constants.npz").items()}}
    graph = parse_graph((HERE / "region.txt").read_text(), constants)
    backend = backend_of({reference!r})
    executable = build(backend, graph, first_device(backend), {config!r})
    return lambda inputs: [
        x if isinstance(x, np.ndarray) else x.read() for x in executable.run(inputs)
    ]
"""


def write_repro(
    folder: Path,
    culprit: Culprit,
    backend: Backend,
    device: Device,
    config: Config,
    reference: str,
) -> Path | None:
    """Write a folder that shows a fault; None if the region has values other than tensors.

    ``reference`` is the "module:Class" of the backend, for scripts that need Fusewire.
    """
    values = [*culprit.inputs, *(e.wide for e in culprit.expected)]
    if not all(isinstance(x, np.ndarray) and x.dtype.kind != "O" for x in values):
        return None
    types: dict[str, str] = {}
    script = _backend_script(culprit, backend, device, config)
    script = script or _fusewire_script(culprit, config, reference, types)
    arrays = {f"input{i}": x for i, x in enumerate(culprit.inputs)}
    for i, expected in enumerate(culprit.expected):
        arrays |= {f"{kind}{i}": x for kind, x in _answers(expected).items()}
    files = {
        "region.txt": print_graph(culprit.region).encode(),
        "arrays.npz": _packed(arrays, types),
        **script.files,
        "repro.py": _text(culprit, backend, script, types).encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / "repro.py"


def _backend_script(
    culprit: Culprit, backend: Backend, device: Device, config: Config
) -> Script | None:
    """Ask the backend for a script; None if it cannot write one."""
    if not isinstance(backend, Scripted):
        return None
    name, region = backend.info.name, culprit.region
    try:
        return guarded(name, "compile", described(region), backend.script, region, device, config)
    except EngineError:
        return None


def _fusewire_script(
    culprit: Culprit, config: Config, reference: str, types: dict[str, str]
) -> Script:
    """Write a script that runs the region with Fusewire."""
    constants = {d: c.array for d, c in constants_of(culprit.region).items()}
    plain = replace(config, options=dict(config.options))
    source = _FUSEWIRE.format(reference=reference, config=plain)
    return Script(source, {"constants.npz": _packed(constants, types)})


def _text(culprit: Culprit, backend: Backend, script: Script, types: Mapping[str, str]) -> str:
    info, region = backend.info, culprit.region
    what = culprit.op if culprit.alone else " + ".join(node.op for node in region.nodes[:8])
    lines = print_graph(region).splitlines()
    return _TEMPLATE.format(
        headline=f"{info.name} {info.version} is wrong about {what}.",
        reason=_quoted(culprit.judged.reason),
        nodes="\n".join(_quoted(line[:160]) for line in lines[:40]),
        version=version("fusewire"),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        types=pprint.pformat(dict(types)),
        source=script.source.rstrip() + "\n",
        inputs=len(culprit.inputs),
    )


def _quoted(text: str) -> str:
    """Escape text so that it does not end the docstring around it."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _answers(expected: Expected) -> dict[str, Array]:
    """Return the exact answer, rounded where that is not finite, and the tolerance."""
    with np.errstate(all="ignore"):
        stored = expected.stored.astype(expected.wide.dtype)
        is_number = expected.dtype.is_inexact
        exact = np.where(np.isfinite(stored), expected.wide, stored) if is_number else stored
        if exact.dtype.kind in "iu" and exact.dtype.itemsize < 8:
            exact = exact.astype(np.int64)
    return {"exact": exact, "within": expected.tolerance, "skipped": expected.masked}


def _packed(arrays: Mapping[str, Array], types: dict[str, str]) -> bytes:
    """Pack arrays as .npz; those of dtypes that NumPy lacks as bytes, with a note in types."""
    stored: dict[str, Any] = {}
    for name, array in arrays.items():
        kind = dtype(array.dtype)
        is_known = kind.numpy.kind in "biufc" and kind.numpy.isbuiltin == 1
        if not is_known:
            types[name] = kind.name
            array = np.ascontiguousarray(array).view(f"u{kind.itemsize}")
        stored[name] = array
    file = io.BytesIO()
    np.savez_compressed(file, **stored)
    return file.getvalue()


# The folder of the scripts, within that of the store.
FOLDER = "repros"


def _search(
    candidate: Candidate, inputs: Sequence[HostValue], runner: TrialRunner, deadline: float
) -> Culprit | None:
    """Look for the first wrong node until the deadline; None if it was not found."""
    target, seconds = candidate.target, deadline - time.monotonic()
    limits = replace(runner.limits, seconds=min(runner.limits.seconds, max(seconds, 1.0)))
    config, reference = candidate.config(runner.config), runner.reference_of(target.name)
    build = engine(reference, target.device, config, limits, isolate=runner.isolate)
    graph = candidate.planned.plan.steps[0].region.graph
    try:
        with limited(RunLimits(seconds)):
            return find_culprit(graph, inputs, build, deadline=deadline)
    except BudgetError:
        return None


def explain_fault(
    trial: CandidateTrial,
    inputs: Sequence[HostValue],
    runner: TrialRunner,
    findings: Findings,
    reason: str,
    deadline: float,
) -> str:
    """Find the first wrong node of a candidate, write a script that shows it, and report both."""
    candidate = trial.candidate
    plan, target = candidate.planned.plan, candidate.target
    fact = Fact("wrong", reason)
    if not plan.is_whole or candidate.form == "file":
        return ""
    if time.monotonic() > deadline:
        return "The budget was used up before its first wrong node was looked for."
    config = candidate.config(runner.config)
    reference = runner.reference_of(target.name)
    try:
        culprit = _search(candidate, inputs, runner, deadline)
    except EngineError as error:
        return f"Its first wrong node was not found: {error}"
    if culprit is None:
        return "Its first wrong node was not found within the budget."
    findings.quarantine(candidate, replace(fact, place=str(culprit.place), op=culprit.op))
    sentence = f"The first wrong node is {culprit.place}, {culprit.op}"
    sentence += f" ({culprit.source})." if culprit.source else "."
    folder = findings.folder
    if folder is None:
        return sentence
    path = folder / FOLDER / f"{target.name}-{culprit.op}-{findings.exact[:12]}"
    try:
        script: Path | None = write_repro(
            path, culprit, target.backend, target.device, config, reference
        )
    except OSError as error:
        return f"{sentence} The script that shows it could not be written: {error}."
    return f"{sentence} {script} shows it." if script else sentence
