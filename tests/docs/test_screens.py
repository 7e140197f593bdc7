"""Pictures of the commands are complete, load nothing, and are what the commands print."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def screens() -> ModuleType:
    spec = importlib.util.spec_from_file_location("screens", DOCS / "screens.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(svg: str) -> str:
    found = ET.fromstring(svg).findall(".//{http://www.w3.org/2000/svg}text")
    return "\n".join("".join(part.itertext()).replace("\xa0", " ") for part in found)


def test_every_command_has_a_picture_of_each_width(screens: ModuleType) -> None:
    names = {f"{name}-{columns}.svg" for name in screens.COMMANDS for columns in screens.WIDTHS}
    assert {path.name for path in screens.FOLDER.iterdir()} == names
    for path in screens.FOLDER.iterdir():
        svg = path.read_text(encoding="utf-8")
        assert "fusewire" in words(svg)
        # Nothing is loaded from elsewhere; the name of the format is an address.
        assert set(re.findall(r"https?://[^\"'\s)]+", svg)) <= {
            "http://www.w3.org/2000/svg",
            "https://www.textualize.io",
        }


def test_picture_shows_what_the_command_prints(screens: ModuleType) -> None:
    svg = screens.picture(("show", str(screens.EXAMPLE)), 80)
    assert "max_pool" in words(svg)
    assert "$ fusewire show mnist.onnx" in words(svg)
