"""Take pictures of the commands, as they print on screens of 80 and of 120 columns.

    python docs/screens.py [NAME ...]

Runs each command as a user would, and writes docs/screens/NAME-COLUMNS.svg with Rich's export. The
figures of `bench` are those of this machine at this moment: take them when nothing else runs.

    python docs/screens.py readme MODEL

Draws docs/pictures/bench-MODEL.svg of a model file with `bench --plot`, and records the output of
`bench --example` in the README. A machine that is busy gives neither: look at both.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).with_name("screens")
WIDTHS = (80, 120)
ENGINES = "onnxruntime,openvino,xla,reference"
EXAMPLE = Path(__file__).parents[1] / "src" / "fusewire" / "example" / "mnist.onnx"
COMMANDS = {
    "bench": ("bench", "--example", "--backends", ENGINES),
    "explain": ("explain", str(EXAMPLE), "--backend", "onnxruntime"),
    "run": ("run", str(EXAMPLE), "--backend", "onnxruntime"),
    "doctor": ("doctor",),
    "conform": ("conform", "onnxruntime", "--slice", "1/16"),
}
# Rich's template loads a font from elsewhere; a page in a repository must not.
_FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)

_EXAMPLE_BLOCK = re.compile(r"```console[^\n]*\n\$ fusewire bench --example\n.*?```", re.DOTALL)


def picture(words: tuple[str, ...], columns: int) -> str:
    """Run a command on a screen of so many columns, and draw what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fusewire", *words],
        env={**os.environ, "COLUMNS": str(columns), "FORCE_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} exited with {done.returncode}:\n{done.stdout}")
    console = Console(record=True, width=columns, file=io.StringIO())
    shown = " ".join(word.replace(str(EXAMPLE), EXAMPLE.name) for word in words)
    console.print(f"[bold]$ fusewire {shown}[/]", highlight=False)
    console.print(Text.from_ansi(done.stdout.rstrip()), soft_wrap=True)
    return console.export_svg(
        title=f"{columns} columns",
        code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT),
        unique_id=f"fusewire-{words[0]}-{columns}",
    )


def record_readme(model: Path) -> None:
    """Draw the picture of a model, and record the output that the README shows."""
    drawn = FOLDER.with_name("pictures") / f"bench-{model.stem}.svg"
    said("bench", str(model), "--plot", str(drawn))
    lines = [line.rstrip() for line in said("bench", "--example").rstrip().splitlines()]
    shown = "\n".join(["```console recorded", "$ fusewire bench --example", *lines, "```"])
    page = FOLDER.parents[1] / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(_EXAMPLE_BLOCK.sub(lambda _: shown, text), encoding="utf-8")


def said(*words: str) -> str:
    """Run a command as the tests of the pages do, and return what it says."""
    plain = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "fusewire", *words]
    return subprocess.run(command, env=plain, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(names: list[str]) -> None:
    """Draw the named commands, or all of them."""
    if names[:1] == ["readme"]:
        record_readme(Path(names[1]))
        return
    FOLDER.mkdir(exist_ok=True)
    for name in names or COMMANDS:
        for columns in WIDTHS:
            path = FOLDER / f"{name}-{columns}.svg"
            path.write_text(picture(COMMANDS[name], columns), encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
