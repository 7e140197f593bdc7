"""What does someone read whose machine lacks something, or whose engine is broken, or lies?

    python benchmarks/broken_environments.py [--only NAME ...] [--folder F] [--json]
                                             [--write benchmarks/results/broken_environments.md]

Twenty-two environments. Most are virtual environments: with packages of this one, by links, or with
wheels that are installed for it (``--folder`` keeps them for the next run). Others are this one,
with a backend that misbehaves on purpose. In each a process is asked for its backends, or runs a
program. It must end by itself within 10 seconds, and say what is wrong and what to do. Exit 1 if
one does not. Installing is not part of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.environments import environment  # noqa: E402 - the path comes first

SECONDS = 10.0
LIST = """
import json
from fusewire.cli.backends import describe_all
for row in describe_all():
    if row["name"] in {names!r} or not {names!r}:
        devices = " ".join(device["id"] for device in row["devices"])
        print(f"{{row['name']}}: {{row['state']}}; {{devices}}; {{row['reason']}}")
"""
RUN = """
import numpy as np, fusewire as fw
{before}
def function(x):
    return np.tanh(x) + x
x = np.ones({shape}, np.float32)
try:
    program = fw.compile(function, x, {options})
    found = program(x)
    right = np.allclose(found[:1], np.tanh(1.0) + 1.0)
    print("right" if right else "WRONG", "on", program.why().backend)
except fw.FusewireError as error:
    print(type(error).__name__, error)
"""


@dataclass(frozen=True)
class Environment:
    """What is there, what is asked, and what must be said."""

    title: str
    says: str
    packages: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    code: str = LIST.format(names=())
    variables: Mapping[str, str] = field(default_factory=dict)
    damage: Callable[[Path], None] = lambda site: None
    is_here: bool = False


def listing(*names: str) -> str:
    return LIST.format(names=names)


def running(options: str, before: str = "", shape: str = "4") -> str:
    return RUN.format(options=options, before=before, shape=shape)


def truncated(pattern: str) -> Callable[[Path], None]:
    """Cut a native library short, as a full disk does."""

    def damage(site: Path) -> None:
        (found,) = site.glob(pattern)
        package = site / found.relative_to(site).parts[0]
        if package.is_symlink():
            source = package.resolve()
            package.unlink()
            shutil.copytree(source, package)
        found.write_bytes(found.read_bytes()[:4096])

    return damage


def without(*names: str) -> Callable[[Path], None]:
    """Take packages away that an installer would have brought."""

    def damage(site: Path) -> None:
        for name in names:
            for found in (site / name, *site.glob(f"{name}-*.dist-info")):
                found.unlink() if found.is_symlink() else shutil.rmtree(found, ignore_errors=True)

    return damage


def misbehaving(fault: str, options: str = 'backend="chaos"') -> str:
    return running(options, f'fw.register("fusewire.testing.chaos:{fault}", name="chaos")')


GONE = """
from fusewire.registry import REGISTRY
REGISTRY.devices()
import os
os.environ["VK_ICD_FILENAMES"] = os.environ["VK_DRIVER_FILES"] = "/nonexistent.json"
"""
NO_DRIVER = {"VK_ICD_FILENAMES": "/nonexistent.json", "VK_DRIVER_FILES": "/nonexistent.json"}
ENVIRONMENTS: Mapping[str, Environment] = {
    "core": Environment("no engine at all", r"pip install ['\"]?fusewire\[onnxruntime\]"),
    "core-run": Environment(
        "no engine, and one is asked for by name",
        r"pip install ['\"]?fusewire\[xla\]",
        code=running('backend="xla"'),
    ),
    "ort": Environment(
        "ONNX Runtime, and a CUDA device is asked for",
        r"cuda.*fusewire backends",
        packages=("onnxruntime",),
        code=running('backend="onnxruntime", device="cuda:0"'),
    ),
    "ort-gpu": Environment(
        "onnxruntime-gpu without a driver",
        r"(?s)onnxruntime:.*(CUDA|libcu|driver)",
        wheels=("onnxruntime-gpu",),
        code=listing("onnxruntime"),
    ),
    "ort-two": Environment(
        "two wheels of onnxruntime at once",
        r"(?s)onnxruntime:.*(onnxruntime-gpu|two|both)",
        wheels=("onnxruntime", "onnxruntime-gpu"),
        code=listing("onnxruntime"),
    ),
    "ort-webgpu": Environment(
        "onnxruntime-webgpu, which falls back to the CPU",
        r"(?is)onnxruntime:.*webgpu",
        wheels=("onnxruntime-webgpu==1.27.0",),
        code=listing("onnxruntime"),
    ),
    "ep-webgpu": Environment(
        "a plugin provider that finds no device",
        r"(?is)onnxruntime:.*webgpu",
        packages=("onnxruntime",),
        wheels=("onnxruntime-ep-webgpu==0.4.0",),
        code=listing("onnxruntime"),
    ),
    "ep-openvino": Environment(
        "a plugin provider that runs here",
        r"(?is)onnxruntime: ready;.*openvino",
        packages=("onnxruntime",),
        wheels=("onnxruntime-ep-openvino==1.8.1",),
        code=listing("onnxruntime"),
    ),
    "ort-broken": Environment(
        "onnxruntime with its library cut short",
        r"(?is)onnxruntime: broken;.*(reinstall|install)",
        packages=("onnxruntime",),
        code=listing("onnxruntime"),
        damage=truncated("onnxruntime/capi/onnxruntime_pybind11_state*.so"),
    ),
    "openvino-broken": Environment(
        "openvino with its library cut short",
        r"(?is)openvino: broken;.*(reinstall|install)",
        packages=("openvino",),
        code=listing("openvino"),
        damage=truncated("openvino/libs/libopenvino.so*"),
    ),
    "jax-alone": Environment(
        "jax without jaxlib",
        r"(?is)xla:.*jaxlib.*pip install",
        packages=("jax",),
        code=listing("xla"),
        damage=without("jaxlib"),
    ),
    "jax-cuda": Environment(
        "jax's CUDA plugin without a driver",
        r"(?is)xla: ready; cpu;.*|xla:.*cuda",
        packages=("jax",),
        wheels=("jax-cuda12-plugin==0.10.2", "jax-cuda12-pjrt==0.10.2"),
        code=listing("xla"),
    ),
    "xla-flags": Environment(
        "a flag that XLA does not know, which ends its process",
        r"(?is)xla: broken;.*XLA_FLAGS",
        packages=("jax",),
        code=listing("xla"),
        variables={"XLA_FLAGS": "--xla_no_such_flag=1"},
    ),
    "wgpu-driver": Environment(
        "wgpu without a Vulkan driver",
        r"(?is)webgpu:.*(driver|adapter).*(install|Install)",
        packages=("wgpu",),
        code=listing("webgpu"),
        variables=NO_DRIVER,
    ),
    "wgpu-gone": Environment(
        "a device that is gone between probe and compile",
        r"(?is)(webgpu|adapter|Error)",
        packages=("wgpu",),
        code=running('backend="webgpu", fallback="error"', GONE),
    ),
    "wgpu-memory": Environment(
        "more than a buffer of the device may hold",
        r"(?is)(bytes|buffer|memory|right on)",
        packages=("wgpu",),
        code=running('backend="webgpu", fallback="error"', shape="(1 << 28) + 1"),
    ),
    "hangs": Environment(
        "a backend whose probe never ends",
        r"(?s)chaos gave no answer in time.*limit is 3 seconds.*Run it on another",
        code=misbehaving("hang_at_probe", 'backend="chaos", deadline=3.0'),
        is_here=True,
    ),
    "crashes": Environment(
        "a backend whose probe crashes",
        r"(?s)chaos crashed.*SIGSEGV.*Reinstall",
        code=misbehaving("segv_at_probe"),
        is_here=True,
    ),
    "garbage": Environment(
        "a backend that lists what is no device",
        r"(?s)chaos broke the backend contract.*report it",
        code=misbehaving("garbage_at_probe"),
        is_here=True,
    ),
    "compile-crash": Environment(
        "a backend that crashes as it compiles",
        r"(?is)(chaos|right on)",
        code=misbehaving("segv_at_compile", 'backend="chaos", start="measured"'),
        is_here=True,
    ),
    "no-class": Environment(
        "an entry that names no class",
        r"(?s)nonexistent.*Give a module",
        code=running('backend="absent"', 'fw.register("nonexistent:Class", name="absent")'),
        is_here=True,
    ),
    "read-only": Environment(
        "a home that cannot be written",
        r"(?is)right on",
        code=running(""),
        variables={"HOME": "/proc", "XDG_CACHE_HOME": "/proc/x", "XDG_CONFIG_HOME": "/proc/x"},
        is_here=True,
    ),
}


def python_of(name: str, about: Environment, top: Path) -> str:
    """Make the environment, unless it is there."""
    if about.is_here:
        return sys.executable
    folder = top / name
    python = folder / "bin" / "python"
    if (folder / "whole").exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    environment(folder, *about.packages)
    if about.wheels:
        words = ["--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
        own = ["--no-deps"] if about.packages else []
        subprocess.run([sys.executable, "-m", "pip", *words, *own, *about.wheels], check=True)
    about.damage(next(folder.glob("lib/python*/site-packages")))
    (folder / "whole").touch()
    return str(python)


def asked(name: str, about: Environment, top: Path) -> dict[str, object]:
    """Ask in a process, and judge what it says."""
    python = python_of(name, about, top)
    home = {"FUSEWIRE_CACHE": "off"} if name != "read-only" else {}
    env = {**os.environ, **home, **about.variables}
    words = [python, "-c", about.code]
    # Once before: modules are compiled to bytecode as installers do it.
    warm = [python, "-W", "ignore", "-c", "import fusewire.compiler, fusewire.cli.backends"]
    subprocess.run(warm, env=env, capture_output=True, check=False)
    start = time.perf_counter()
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        said, code = f"{done.stderr[-1500:]}{done.stdout}".strip(), done.returncode
    except subprocess.TimeoutExpired:
        said, code = "did not end within 60 s", -1
    seconds = time.perf_counter() - start
    passed = code == 0 and seconds <= SECONDS and bool(re.search(about.says, said))
    return {
        "name": name,
        "environment": about.title,
        "is_real": not about.is_here,
        "seconds": round(seconds, 1),
        "exit": code,
        "said": said,
        "passed": passed,
    }


def page(rows: list[dict[str, object]]) -> str:
    lines = [
        "# Broken environments",
        "",
        f"`python benchmarks/broken_environments.py`, {date.today()}, Python "
        f"{platform.python_version()}, Linux {platform.machine()}, 2 cores. Each must end "
        "by itself "
        f"within {SECONDS:.0f} s, and say what is wrong and what to do. Those marked * are virtual "
        "environments with real packages.",
        "",
        f"{sum(bool(row['passed']) for row in rows)} of {len(rows)} do.",
        "",
        "| environment | s | what is said | |",
        "|---|---:|---|---|",
    ]
    for row in rows:
        said = " ".join(str(row["said"]).split()).replace("|", "/").replace("<string>:", "line ")
        said = re.sub(r"/\S+/(?=site-packages/|src/)", "", said)
        said = said if len(said) <= 320 else f"{said[:317]}..."
        mark = "*" if row["is_real"] else ""
        verdict = "yes" if row["passed"] else "**no**"
        lines.append(f"| {row['environment']}{mark} | {row['seconds']} | {said} | {verdict} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Ask in all environments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--folder", type=Path, help="keep the environments here")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for name in given.only:
            rows.append(asked(name, ENVIRONMENTS[name], given.folder or Path(folder)))
            if not given.json:
                row = rows[-1]
                verdict = "ok" if row["passed"] else "NO"
                print(f"{verdict} {name} {row['seconds']} s: {row['said']}")
    if given.json:
        print(json.dumps(rows, indent=1))
    if given.write:
        given.write.write_text(page(rows))
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
