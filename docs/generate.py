"""Write the parts of README.md and docs that follow from the code and from recorded results.

    python docs/generate.py           write them
    python docs/generate.py --check   exit 1 and name what is stale, write nothing

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. Its sources are
the entry points, the declarations of ops, the rewrite rules, ``proven.json`` beside each backend,
the command line itself, docstrings, pyproject.toml and benchmarks/results. llms.txt is written as a
whole, from the lists of docs/index.md. tests/docs/test_generated.py fails when something is stale.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import fusewire
from fusewire import errors
from fusewire.cli import COMMANDS, main
from fusewire.cli.ops import dtype_names
from fusewire.contract.backend import BackendInfo
from fusewire.frontends.torch.aten.table import NOT_CONVERTED, aten_rows
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.registry.capability import FLAGS, ConformanceRecord, record_of
from fusewire.rewrite.rules import TABLES

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/decisions/index.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
ENGINES = ROOT / "benchmarks" / "results" / "engines.md"
# What the README shows of it.
ALONE = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "inductor": "Inductor"}
SHOWN_COLUMNS = (
    ("onnxruntime ms", "ONNX Runtime"),
    ("openvino ms", "OpenVINO"),
    ("torch ms", "PyTorch"),
    ("ours ms", "Fusewire"),
    ("over best", "over the best"),
    ("interval", "95% interval"),
    ("verdict |", "verdict"),
)
COSTLY_ROWS = {"ppocr-det": "text detection", "tashkeel": "vowels of Arabic text"}
SHOWN_ROWS = {
    "ppocr-det": "text detection",
    "ppocr-rec": "text recognition",
    "minilm-l3": "sentence embedding",
    "resnet50-arc": "hotwords",
    "yolox": "object detection",
    "u2netp": "background removal",
    "page-orientation": "photographed pages",
    "magika": "file types",
    "silero-vad": "voice activity",
    "mnist": "digits",
}
ONNX_SUITE = ROOT / "benchmarks" / "results" / "onnx_suite.json"
# Backends of this repository; whatever else is installed does not belong in its pages.
OURS = "fusewire.backends."
FOR_DEVELOPERS = ("dev", "docs")
# What an extra brings that is not a backend's.
BESIDE_ENGINES = {
    "onnx": "ONNX files as sources, and `fw.save_onnx`",
    "torch": "PyTorch modules as sources, and PyTorch in eager mode as an engine",
    "ray": "Batch jobs and tuning, on a Ray cluster or without one",
    "remote": "A store that machines share, and signatures of what is in it",
    "server": "`fusewire serve`: models over the Open Inference Protocol, REST and gRPC",
}
BARE = {
    "benchmarks.onnx_sides:onnxruntime": "ONNX Runtime, bare",
    "benchmarks.onnx_sides:evaluator": "onnx's ReferenceEvaluator",
}
WIDTH = 100
# An entry of the lists in docs/index.md, which may go on in indented lines.
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\): (.+(?:\n  .+)*)", re.MULTILINE)
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def ours() -> list[str]:
    """Name the backends whose entry points are in this repository."""
    plugins = map(REGISTRY.backends.describe, REGISTRY.backends.names())
    return [plugin.name for plugin in plugins if plugin.reference.startswith(OURS)]


def info_of(name: str) -> BackendInfo:
    """Return what a backend says about itself; no engine is imported for it."""
    return REGISTRY.backends.get(name).info


def records() -> dict[str, ConformanceRecord]:
    """Read what each backend proved."""
    plugins = {name: REGISTRY.backends.describe(name) for name in ours()}
    read = {name: record_of(name, plugin.reference) for name, plugin in plugins.items()}
    return {name: record for name, record in read.items() if record is not None}


def table(head: Sequence[str], rows: Sequence[Sequence[object]], right: str = "") -> Iterator[str]:
    """Lay out a Markdown table; the columns named in ``right`` are aligned to the right."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---:' if name in right.split(',') else '---' for name in head)}|"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"


def engines() -> Iterator[str]:
    """Say what the recorded comparison of engines found, and show some of its rows."""
    page = ENGINES.read_text(encoding="utf-8")

    def found(pattern: str) -> tuple[str, ...]:
        line = re.search(pattern, page, re.MULTILINE)
        assert line is not None, f"{ENGINES.name} has no line {pattern}"
        return line.groups()

    number = r"(\d+(?:\.\d+)?)"
    over = []
    for name, title in ALONE.items():
        times = found(rf"^- Over {name} every.*: {number} times .*l {number}-{number}, (\d+) rows")
        over.append("{} {} times as long (95% interval {} to {}, {} rows)".format(title, *times))
    rows, fail, passing, unclear = found(r"^- (\d+) rows: (\d+) fail, (\d+) pass, (\d+) unclear")
    ours, worst = found(rf"geometric mean: all {number},.* worst {number}")
    yield (
        "One engine for everything takes longer than the one that is chosen for each model: "
        f"{', '.join(over)}. Against the best engine of each row, which is known only afterwards, "
        f"Fusewire takes {ours} times as long, a geometric mean: of {rows} rows {passing} pass, "
        f"{fail} fail, {unclear} have intervals too wide to judge, and the worst takes {worst} "
        "times as long.\n"
    )
    cells = _engine_rows(page)
    places = [cells["row"].index(column) for column, _ in SHOWN_COLUMNS]
    titles = ["Model", *(title for _, title in SHOWN_COLUMNS)]
    shown = [
        [f"{name}, {about}", *(cells[name][place].removesuffix(" |") for place in places)]
        for name, about in SHOWN_ROWS.items()
    ]
    yield from table(titles, shown, right=",".join(titles[1:-1]))


def _engine_rows(page: str) -> dict[str, list[str]]:
    """Map the rows of the comparison, and its head, to their cells."""
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {line[0].removeprefix("| "): line for line in lines}


def one_engine() -> Iterator[str]:
    """Show by two rows of the comparison what the wrong engine costs."""
    cells = _engine_rows(ENGINES.read_text(encoding="utf-8"))
    columns, titles = zip(*SHOWN_COLUMNS[:4], strict=True)
    rows: list[list[str]] = []
    for name, about in COSTLY_ROWS.items():
        row = dict(zip(cells["row"], cells[name], strict=True))
        times = [row[column] for column in columns]
        rows.append([f"{about} ({name})", *times, ALONE[row["chosen"]]])
    heads = ("Milliseconds per call", *titles)
    yield from table((*heads, "which chose"), rows, right=",".join(titles))


def extras() -> Iterator[str]:
    """Tabulate the extras of pyproject.toml that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brings = {info_of(name).extra: info_of(name).description for name in ours()} | BESIDE_ENGINES
    yield from table(
        ("Extra", "Brings", "Packages"),
        [
            (f"`{extra}`", brings[extra], ", ".join(f"`{_package(text)}`" for text in packages))
            for extra, packages in project["optional-dependencies"].items()
            if extra not in FOR_DEVELOPERS
        ],
    )


def _package(requirement: str) -> str:
    return requirement.partition(";")[0].strip()


def commands() -> Iterator[str]:
    """Tabulate the commands with what they do."""
    rows = [(f"`{_usage(name)}`", summary) for name, summary in COMMANDS.items()]
    yield from table(("Command", "Does"), rows)


def _command(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    return command


def _usage(name: str) -> str:
    command = _command(name)
    if isinstance(command, click.Group):
        return f"fusewire {name} COMMAND"
    arguments = [x.make_metavar(click.Context(command)) for x in _arguments(command)]
    return " ".join(["fusewire", name, *arguments])


def _arguments(command: click.Command) -> list[click.Argument]:
    return [x for x in command.params if isinstance(x, click.Argument)]


def command_pages() -> Iterator[str]:
    """Show the help of every command and subcommand."""
    # Commands inherit settings from this context, such as the names of the help option.
    top = click.Context(
        main,
        info_name="fusewire",
        max_content_width=WIDTH,
        terminal_width=WIDTH,
        **main.context_settings,
    )
    for name in COMMANDS:
        command = _command(name)
        context = click.Context(command, parent=top, info_name=name)
        yield f"## fusewire {name}\n"
        yield f"```text\n{command.get_help(context)}\n```\n"
        for sub in command.commands.values() if isinstance(command, click.Group) else ():
            inner = click.Context(sub, parent=context, info_name=sub.name)
            yield f"```text\n{sub.get_help(inner)}\n```\n"


def status() -> Iterator[str]:
    """Tabulate what each backend proved, and how many cases of ONNX's suite it passes."""
    suite = json.loads(ONNX_SUITE.read_text(encoding="utf-8"))
    proven = records()
    rows = []
    for name in ours():
        info, record = info_of(name), proven.get(name)
        rows.append(
            (
                f"`{name}`",
                info.description,
                _proven(record),
                _passed(suite, name),
                _passed(suite, f"{name}+reference"),
            )
        )
    head = ("Backend", "What it is", "Ops proven", "ONNX suite", "with fallback")
    yield from table(head, rows, "Ops proven,ONNX suite,with fallback")


def _proven(record: ConformanceRecord | None) -> str:
    if record is None:
        return "not recorded"
    counts = record.families().values()
    return f"{sum(n for n, _ in counts)} of {sum(of for _, of in counts)}"


def _passed(suite: Mapping[str, Any], side: str) -> str:
    result = suite["sides"].get(side)
    if result is None:
        return "" if side.startswith("reference+") else "not run"
    return f"{result['counts']['passed']:,} of {suite['cases']:,}"


def backends() -> Iterator[str]:
    """Tabulate the conformance run that is recorded beside each backend."""
    rows = []
    for name, record in records().items():
        of = sum(count for _, count in record.families().values())
        taken = list(record.ops.values())
        proven, partial = taken.count("proven"), taken.count("partial")
        refused = of - len(taken)  # Or declared after the run.
        gaps = len(taken) - proven - partial
        run = f"{record.date}, {record.version}, {record.device}"
        rows.append((f"`{name}`", proven, f"{proven / of:.0%}", partial, refused, gaps, run))
    head = ("Backend", "Proven", "Share", "In part", "Refused or newer", "Gaps", "Recorded")
    yield from table(head, rows, ",".join(head[1:6]))


def families() -> Iterator[str]:
    """Tabulate proven ops by family and backend."""
    counts = {name: record.families() for name, record in records().items()}
    names = dict.fromkeys(family for found in counts.values() for family in found)
    rows = []
    for family in names:
        of = max(found[family][1] for found in counts.values())
        rows.append((family, of, *(found[family][0] for found in counts.values())))
    head = ("Family", "Ops", *(f"`{name}`" for name in counts))
    yield from table(head, rows, ",".join(head[1:]))


def capabilities() -> Iterator[str]:
    """Tabulate the capabilities that each backend holds."""
    held = {name: REGISTRY.capabilities(name) for name in ours()}
    rows = [(flag, *("yes" if held[n][flag].is_held else "" for n in held)) for flag in FLAGS]
    yield from table(("Capability", *(f"`{name}`" for name in held)), rows)


def options() -> Iterator[str]:
    """Tabulate the options of each backend."""
    found = [(name, option) for name in ours() for option in REGISTRY.get(name).options]
    rows = [(f"`{name}`", f"`{x.name}`", f"`{x.default!r}`", x.meaning) for name, x in found]
    yield from table(("Backend", "Option", "Default", "Meaning"), rows)


def onnx_suite() -> Iterator[str]:
    """Tabulate the recorded runs of ONNX's backend test suite, with their date and commit."""
    suite = json.loads(ONNX_SUITE.read_text(encoding="utf-8"))
    rows: list[tuple[object, ...]] = []
    for side, result in suite["sides"].items():
        name, _, fallback = BARE.get(side, side).partition("+")
        counts = result["counts"]
        rows.append(
            (
                name if side in BARE else f"`{name}`",
                fallback or ("" if side in BARE else "none"),
                f"{counts['passed']:,}",
                f"{counts['failed']:,}",
                result["refused"] or "",
                counts["excluded"],
                "" if result["host"] is None else result["host"],
                f"{result['date']} at {result['commit']}",
            )
        )
    rows += [
        (f"`{name}`", "", *["not run"] * 2, *[""] * 4)
        for name in ours()
        if name not in suite["sides"]
    ]
    head = (
        "Runs on",
        "Fallback",
        "Passed",
        "Failed",
        "Refused",
        "Excluded",
        "With host",
        "Recorded",
    )
    yield f"The suite has {suite['cases']:,} cases.\n"
    yield from table(head, rows, ",".join(head[2:7]))


def ops() -> Iterator[str]:
    """List every op by family, with the backends that proved it."""
    proven = {name: record.ops for name, record in records().items()}
    ops = list(all_ops().values())
    for family in dict.fromkeys(op.family for op in ops):
        own = [op for op in ops if op.family == family]
        yield f"## {family}\n"
        rows = []
        for op in own:
            names = [name for name in proven if proven[name].get(op.name) == "proven"]
            kind = "composite" if op.is_composite else "primitive"
            on = "all" if len(names) == len(proven) else ", ".join(names)
            rows.append((f"`{op.name}`", kind, op.doc, dtype_names(op.dtypes), on))
        yield from table(("Op", "Kind", "Description", "Dtypes", "Proven on"), rows)
        yield ""


def aten_core() -> Iterator[str]:
    """List PyTorch's core ops: which of ours each becomes, or why it is refused."""
    rows = []
    for name in core_aten():
        row, why = aten_rows().get(name), NOT_CONVERTED.get(name)
        rows.append((f"`{name}`", _ours(row.ops) if row else "", "" if row else why or ""))
    count = sum(1 for name in core_aten() if name in aten_rows())
    yield f"{count} of {len(rows)} are converted, and {len(NOT_CONVERTED)} have another reason.\n"
    yield from table(("Op", "Becomes", "Not converted because"), rows)


def aten_others() -> Iterator[str]:
    """List the other ops that have rows, by what they become."""
    core, by_ours = set(core_aten()), dict[str, list[str]]()
    for name, row in aten_rows().items():
        if name not in core:
            by_ours.setdefault(row.ops, []).append(f"`{name.removesuffix('.default')}`")
    yield from table(
        ("Ops", "Become"), [(", ".join(names), _ours(ours)) for ours, names in by_ours.items()]
    )


def core_aten() -> list[str]:
    lines = (ROOT / "docs" / "core_aten.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def _ours(names: str) -> str:
    """Mark the names of our ops as code; what is said in words stays."""
    ops = names.split(", ")
    return ", ".join(f"`{op}`" if op in all_ops() else op for op in ops)


def rules() -> Iterator[str]:
    """List every rewrite rule by table, in the order in which they are tried."""
    for area in TABLES:
        yield f"## {area.name}\n"
        rows = []
        for rule in area.rules:
            ops = ", ".join(f"`{op}`" for op in rule.ops) or "every op that `when` selects"
            rows.append((f"`{rule.name}`", ops, rule.because, "yes" if rule.exact else "no"))
        yield from table(("Rule", "Starts from", "Because", "Exact"), rows)
        yield ""


# The public names in the order of the page; tests/docs/test_reference.py wants each of them once.
REFERENCE = {
    "Compile and call": ("compile", "capture", "open", "Program", "Result", "Options"),
    "Profile": ("profile",),
    "Sources": ("trace", "load", "Spec", "Limits", "Graph", "save_onnx"),
    "Buffers": (
        "Buffer",
        "asarray",
        "empty",
        "from_dlpack",
        "state",
        "memory",
        "collect",
        "on_memory_pressure",
    ),
    "Single ops and fusion": ("run", "fuse", "fusion_backends", "ops"),
    "Backends and devices": (
        "list_backends",
        "devices",
        "device",
        "best_device",
        "supports",
        "get",
        "set_default",
        "register",
        "unregister",
        "register_op",
        "close",
        "Registry",
    ),
    "Errors and warnings": ("FusewireError", "FallbackWarning"),
}


def reference() -> Iterator[str]:
    """Describe every public name by its signature and docstring."""
    for section, names in REFERENCE.items():
        yield f"## {section}\n"
        for name in names:
            thing = getattr(fusewire, name)
            yield f"### fw.{name}\n"
            if inspect.isclass(thing):
                yield from _class_entry(name, thing)
            elif callable(thing):
                yield from _function_entry(f"fw.{name}", thing)
            else:
                yield _prose(inspect.getdoc(thing))
    yield "All errors and warnings are in `fusewire.errors`:\n"
    yield f"```text\n{(errors.__doc__ or '').partition(chr(10) * 2)[2].strip()}\n```"


def _class_entry(name: str, thing: type) -> Iterator[str]:
    yield _prose(inspect.getdoc(thing))
    if issubclass(thing, Warning | Exception):
        return
    if dataclasses.is_dataclass(thing):
        rows = [(f"`{x.name}`", f"`{x.type}`", _default(x)) for x in dataclasses.fields(thing)]
        yield from table(("Field", "Type", "Default"), rows)
        yield ""
    for key, member in vars(thing).items():
        if key.startswith("_") and key != "__call__":
            continue
        label = name.lower() if key == "__call__" else f"{name.lower()}.{key}"
        if isinstance(member, property):
            yield f"**`{label}`** {_prose(inspect.getdoc(member))}"
        elif inspect.isfunction(member):
            yield from _function_entry(label, member)


def _default(x: dataclasses.Field[Any]) -> str:
    if x.default is not dataclasses.MISSING:
        return f"`{x.default!r}`"
    if x.default_factory is not dataclasses.MISSING:
        return f"`{x.default_factory()!r}`"
    return ""


def _function_entry(label: str, function: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(function)
    written = [_parameter(x) for x in signature.parameters.values() if x.name != "self"]
    arrow = f") -> {_annotation(signature.return_annotation)}"
    text = f"{label}({', '.join(written)}{arrow}"
    if len(text) > 80:
        text = "".join([f"{label}(\n", *(f"    {x},\n" for x in written), arrow])
    yield f"```text\n{text}\n```\n"
    yield _prose(inspect.getdoc(function))


def _parameter(x: inspect.Parameter) -> str:
    stars = "*" * (x.kind is x.VAR_POSITIONAL) + "**" * (x.kind is x.VAR_KEYWORD)
    text = f"{stars}{x.name}: {_annotation(x.annotation)}"
    if x.default is x.empty:
        return text
    # A default that is only a mark has no text of its own.
    default = "..." if type(x.default) is object else repr(x.default)
    default = x.default.__name__ if inspect.isfunction(x.default) else default
    return f"{text} = {default}"


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "Any"
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _prose(text: str | None) -> str:
    """Turn a docstring into Markdown: code in single back-ticks, examples in a block."""
    paragraphs = []
    for paragraph in (text or "").split("\n\n"):
        if paragraph.startswith(">>>"):
            paragraphs.append(f"```pycon\n{paragraph}\n```")
        else:
            text = re.sub(r"^\* (\w+) \((.*?)\):", r"- `\1` (`\2`):", paragraph, flags=re.MULTILINE)
            paragraphs.append(text.replace("``", "`"))
    return "\n\n".join(paragraphs) + "\n"


def features() -> Iterator[str]:
    """List the founding requirements; ValueError for a test that does not exist."""
    text = (ROOT / "docs" / "features.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["feature"]
    states = [row["state"] for row in rows]
    counted = ", ".join(f"{states.count(x)} {x}" for x in ("done", "partly", "not yet"))
    yield f"{len(rows)} lines: {counted}."
    for number, row in enumerate(rows, 1):
        if "section" in row:
            yield f"\n## {row['section']}\n"
        yield f"**{number}. {row['title']}** ({row['state']})\n"
        yield f"- Call: {row['call']}"
        yield f"- Shown by: {', '.join(map(link_to_test, row['tests']))}"
        if "missing" in row:
            yield f"- Missing: {row['missing']}"
        if "against" in row:
            yield f"- Decided against: {row['against']}"
        yield ""


def link_to_test(test: str) -> str:
    file, _, name = test.partition("::")
    path = ROOT / file
    if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
        raise ValueError(f"docs/features.toml names {test}, which does not exist")
    return f"[`{name}`](../{file})"


def decisions() -> Iterator[str]:
    """List the records of decisions."""
    yield from _titles("docs/decisions", "docs/decisions")


def measurements() -> Iterator[str]:
    """List the recorded results of benchmarks."""
    yield from _titles("benchmarks/results", "docs")


def _titles(folder: str, page: str) -> Iterator[str]:
    for path in sorted((ROOT / folder).glob("*.md")):
        if path.name != "index.md":
            title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            link = path.name if folder == page else f"../{folder}/{path.name}"
            yield f"- [{title}]({link})"


def llms() -> str:
    """Write llms.txt: what Fusewire is, and every page with a sentence about it."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    summary, *sections = index.partition("\n\n")[2].split("\n## ")
    lines = ["# Fusewire", "", f"> {' '.join(summary.split())}", ""]
    for section in sections:
        lines += [f"## {section.partition(chr(10))[0]}", ""]
        for title, target, about in ENTRY.findall(section):
            path = (ROOT / "docs" / target).resolve().relative_to(ROOT).as_posix()
            lines.append(f"- [{title}]({path}): {' '.join(about.split())}")
        lines.append("")
    return "\n".join(lines)


# Files that are written as a whole.
FILES: Mapping[str, Callable[[], str]] = {"llms.txt": llms}


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "extras": extras,
    "engines": engines,
    "one-engine": one_engine,
    "commands": commands,
    "command-pages": command_pages,
    "status": status,
    "backends": backends,
    "families": families,
    "capabilities": capabilities,
    "options": options,
    "onnx-suite": onnx_suite,
    "ops": ops,
    "aten-core": aten_core,
    "aten-others": aten_others,
    "rules": rules,
    "reference": reference,
    "features": features,
    "decisions": decisions,
    "measurements": measurements,
}


def generated(text: str) -> str:
    """Write the generated parts of a page anew; ValueError for a part that nothing generates."""

    def part(found: re.Match[str]) -> str:
        if found["name"] not in PARTS:
            raise ValueError(f"{found['name']!r} is not a part; parts: {', '.join(PARTS)}")
        lines = "\n".join(PARTS[found["name"]]()).rstrip("\n")
        return f"{found[1]}\n{lines}\n\n"

    return PART.sub(part, text)


def _wanted(name: str, text: str) -> str:
    return FILES[name]() if name in FILES else generated(text)


def stale(root: Path, pages: Sequence[str] = (*PAGES, *FILES)) -> dict[str, list[str]]:
    """Map pages to the lines that the generator would add or remove."""
    found = {}
    for name in pages:
        text = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        if (wanted := _wanted(name, text)) != text:
            ours, theirs = wanted.splitlines(), text.splitlines()
            found[name] = [f"- {line}" for line in theirs if line not in ours]
            found[name] += [f"+ {line}" for line in ours if line not in theirs]
    return found


def run(arguments: Sequence[str]) -> int:
    """Write what is stale, or name it."""
    is_check = "--check" in arguments
    for name, lines in stale(ROOT).items():
        print(name, *lines, sep="\n")
        if not is_check:
            path = ROOT / name
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            path.write_text(_wanted(name, text), encoding="utf-8")
    return int(is_check and bool(stale(ROOT)))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
