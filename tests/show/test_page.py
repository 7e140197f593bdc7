"""The page of a plan in a real browser: quick, whole, safe with any names, for everybody."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import fusewire as fw
from fusewire.example import MODEL
from fusewire.show.plan_view import PlanView
from fusewire.show.why import Tried, Why
from tests.chromium import Tab, executable, tab

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "zoo"))
zoo: Any = import_module("zoo")
READY = "document.documentElement?.dataset.ready"
HOSTILE = "</script><img src=x onerror=window.hacked=1>"
CHOICES = np.random.default_rng(0).integers(0, 10_000, (3200, 3)).tolist()
X = np.linspace(0.1, 0.9, 64, dtype=np.float32).reshape(8, 8)


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    if executable() is None:
        pytest.skip("there is no browser here: apt-get install chromium")
    with tab() as opened:
        opened.resize(1280, 900)
        opened.prefer(reduced_motion="reduce")
        yield opened


@pytest.fixture(scope="module")
def split() -> Iterator[str]:
    """A backend that does not take cos."""
    fw.register("tests.toy:split", name="split")
    yield "split"
    fw.unregister("split")


@pytest.fixture(scope="module")
def zoo_view() -> PlanView:
    """A model of the zoo, of which one engine refuses nodes that another runs."""
    try:
        zoo.fetch(["magika"])
        path, arguments = zoo.path("magika"), [*zoo.inputs("magika").values()]
    except (OSError, subprocess.CalledProcessError):
        # The smallest one comes with the package.
        path, arguments = MODEL, [np.ones((1, 1, 28, 28), np.float32)]
    program = fw.compile(
        str(path), backend=["torch-eager", "onnxruntime"], level=0, fallback="error", isolate=False
    )
    return program.explain(*arguments)


def _tangle(x: Any) -> Any:
    """Compute a graph of 5,000 nodes in which hardly anything repeats."""
    functions: list[Callable[[Any], Any]] = [
        np.tanh, np.sin, np.exp, np.arctan, np.sqrt, np.cbrt, np.log1p, np.abs, np.expm1,
    ]  # fmt: skip
    values = [x]
    for step, (function, one, other) in enumerate(CHOICES):
        recent = values[-12:]
        first = np.cos if step in (800, 1600) else functions[function % len(functions)]
        pair = first(recent[one % len(recent)]), recent[other % len(recent)]
        values.append(np.maximum(*pair))
    return values[-1]


@pytest.fixture(scope="module")
def big_view(split: str) -> PlanView:
    program = fw.compile(
        fw.trace(_tangle, X), backend=split, level=0, fallback="allow", isolate=False
    )
    return program.explain(X)


def _open(browser: Tab, view: PlanView, folder: Path) -> float:
    """Open the page of a view; returns the seconds until it can be used."""
    view.save(folder / "plan.html")
    browser.open(folder / "plan.html", READY)
    return float(browser.evaluate(READY)) / 1000


def _search(browser: Tab, words: str) -> list[str]:
    """Type into the search field, and list what is found."""
    browser.evaluate("document.getElementById('search').focus()")
    browser.evaluate("document.getElementById('search').select()")
    browser.call("Input.insertText", text=words)
    browser.wait("document.getElementById('count').textContent.includes('found')")
    found: list[str] = browser.evaluate(
        "[...document.querySelectorAll('#list button')].map((button) => button.textContent)"
    )
    return found


def _hover(browser: Tab, number: int) -> str:
    """Point at a node that is drawn, and return what the page says about it."""
    x, y, is_itself = browser.evaluate(f"document.getElementById('canvas').whereIs({number})")
    assert is_itself, "it is folded"
    browser.move(x, y)
    browser.wait("!document.getElementById('tip').hidden")
    said: str = browser.evaluate("document.getElementById('tip').innerText")
    return said


def _details(browser: Tab) -> str:
    text: str = browser.evaluate("document.getElementById('details').innerText")
    return text


def test_page_of_a_split_zoo_model(browser: Tab, zoo_view: PlanView, tmp_path: Path) -> None:
    why = zoo_view.why
    assert len(why.counts()["data"]) > 1, "it is split"
    times = [_open(browser, zoo_view, tmp_path) for _ in range(3)]
    assert min(times) < 2
    refused = next(
        number
        for number, node in enumerate(why.nodes)
        if any(not verdict.is_offered for verdict in node.verdicts)
    )
    node = why.nodes[refused]
    assert any(f"{node.place} {node.op}" in row for row in _search(browser, node.op))
    browser.press("Enter")
    browser.wait("document.getElementById('details').textContent")
    assert node.op in _details(browser)
    browser.evaluate(f"document.querySelector('#list [data-at=\"{refused}\"]').click()")
    (verdict,) = [verdict for verdict in node.verdicts if not verdict.is_offered]
    assert verdict.reason
    # On hover and where it is selected.
    assert f"not on {verdict.backend}: {verdict.reason}" in _hover(browser, refused)
    assert verdict.reason in _details(browser)
    legend = browser.evaluate("document.getElementById('legend').textContent")
    assert "torch-eager" in legend
    assert "onnxruntime" in legend
    assert zoo_view.timeline is not None
    spans = browser.evaluate("document.querySelectorAll('#timeline .span').length")
    assert spans == len(zoo_view.timeline.spans) > 1
    assert browser.problems() == []


@pytest.mark.timing
def test_page_of_5000_nodes(browser: Tab, big_view: PlanView, tmp_path: Path) -> None:
    why = big_view.why
    assert len(why.nodes) >= 5000
    times = [_open(browser, big_view, tmp_path) for _ in range(3)]
    assert min(times) < 2, times
    (row, *_) = _search(browser, "split does not run cos.")
    assert "cos" in row
    number = next(number for number, node in enumerate(why.nodes) if node.op == "cos")
    browser.press("Enter")
    browser.wait(f"document.getElementById('canvas').whereIs({number})[2]")
    assert "not on split: split does not run cos." in _hover(browser, number)
    # All of it unfolded is laid out and drawn as quickly.
    took = browser.evaluate(
        "(() => { const start = performance.now(); document.getElementById('expand').click();"
        "return performance.now() - start; })()"
    )
    assert took < 2000
    counts = browser.evaluate("document.getElementById('canvas').counts()")
    assert counts["leaves"] == len(why.nodes) + 2
    # Only what is in the window is drawn.
    browser.wait("Number(document.getElementById('canvas').dataset.drawn) < 500")
    assert browser.problems() == []


def _hostile_file(path: Path) -> Path:
    name = HOSTILE
    types = [
        helper.make_tensor_value_info(f"{name} {side}", onnx.TensorProto.FLOAT, [f"{name} n", 4])
        for side in ("in", "out")
    ]
    node = helper.make_node("Tanh", [f"{name} in"], [f"{name} out"], name=f"{name} node")
    graph = helper.make_graph([node], name, types[:1], types[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_names_of_strangers_are_text(browser: Tab, tmp_path: Path) -> None:
    program = fw.compile(str(_hostile_file(tmp_path / "model.onnx")), backend="reference")
    view = program.explain(np.ones((2, 4), np.float32))
    _open(browser, view, tmp_path)
    assert any(HOSTILE in row for row in _search(browser, "onerror"))
    browser.press("Enter")
    browser.wait("document.getElementById('details').textContent")
    assert HOSTILE in _details(browser)
    assert HOSTILE in _hover(browser, 0)
    assert browser.evaluate("window.hacked") is None
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.problems() == []
    assert "<img" not in view.to_html()
    assert "<img" not in view._repr_html_()


def test_page_forbids_every_script_but_its_own(
    browser: Tab, zoo_view: PlanView, tmp_path: Path
) -> None:
    # Even if a name ended up as HTML: the page would refuse to run it, and to load anything.
    page = zoo_view.to_html().replace("<main>", "<main><img src=x onerror=window.hacked=1>")
    (tmp_path / "planted.html").write_text(
        page.replace("</main>", "<script>window.hacked=2</script></main>")
    )
    browser.open(tmp_path / "planted.html", READY)
    assert browser.evaluate("window.hacked") is None
    assert any("Content Security Policy" in problem for problem in browser.problems())


class _Loaded(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "action", "data") and not (value or "").startswith("#"):
                self.addresses.append(f"{tag} {name}={value}")


def test_page_is_whole(zoo_view: PlanView) -> None:
    page = zoo_view.to_html()
    loaded = _Loaded()
    loaded.feed(page)
    assert loaded.addresses == []
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page


def test_graph_is_usable_with_keys(browser: Tab, zoo_view: PlanView, tmp_path: Path) -> None:
    _open(browser, zoo_view, tmp_path)
    browser.evaluate("document.getElementById('canvas').focus()")
    browser.press("Home")
    label = "document.getElementById('canvas').getAttribute('aria-label')"
    seen = [browser.evaluate(label)]
    for _ in range(3):
        browser.press("ArrowDown")
        seen.append(browser.evaluate(label))
    assert all("Selected: " in text for text in seen)
    assert len({*seen}) == 4
    browser.press("Escape")
    assert "Selected" not in browser.evaluate(label)
    # The focus is visible, and everything that can be clicked has a name.
    browser.press("Tab")
    outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    nameless = browser.evaluate(
        "[...document.querySelectorAll('button, select, input, a, canvas')].filter((element) =>"
        "!(element.textContent.trim() || element.ariaLabel || element.labels?.length)).length"
    )
    assert nameless == 0


def test_folded_blocks_unfold_with_keys(browser: Tab, tmp_path: Path) -> None:
    def layers(x: Any) -> Any:
        for _ in range(30):
            x = np.tanh(np.exp(np.sin(x)) * 0.5)
        return x

    _open(browser, fw.compile(layers, X, backend="reference").explain(), tmp_path)
    counts = "document.getElementById('canvas').counts()"
    assert browser.evaluate(counts)["leaves"] == 3
    browser.evaluate("document.getElementById('canvas').focus()")
    browser.press("Home")
    browser.press("ArrowDown")
    assert "30 × block A" in browser.evaluate(
        "document.getElementById('canvas').getAttribute('aria-label')"
    )
    browser.press("Enter")
    assert browser.evaluate(counts) == {"leaves": 32, "containers": 1, "edges": 31}
    browser.press("Enter")
    assert browser.evaluate(counts)["leaves"] == 3


@pytest.mark.parametrize("width", [1280, 800])
def test_page_has_light_and_dark_colours(
    browser: Tab, zoo_view: PlanView, tmp_path: Path, width: int
) -> None:
    browser.resize(width, 900)
    brightness = {}
    for scheme in ("light", "dark"):
        browser.prefer(color_scheme=scheme, reduced_motion="reduce")
        _open(browser, zoo_view, tmp_path)
        shown = browser.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        brightness[scheme] = sum(int(part) for part in shown[4:-1].split(","))
        # Nothing is wider than the window.
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.resize(1280, 900)
    assert brightness["light"] > 600 > 150 > brightness["dark"]


def test_notebooks_show_the_page_in_a_frame_without_access(
    browser: Tab, zoo_view: PlanView, tmp_path: Path
) -> None:
    shown = zoo_view._repr_html_()
    assert shown.count("<iframe ") == 1
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>n</title>{shown}")
    browser.open(tmp_path / "notebook.html", "Boolean(document.querySelector('iframe'))")
    # Another origin: neither side sees the other.
    browser.wait("document.querySelector('iframe').contentDocument === null")
    assert browser.problems() == []


def test_race_shows_intervals_and_changes(browser: Tab, tmp_path: Path) -> None:
    rows = tuple(
        Tried(name, name, "cpu", "graph", "right", seconds=time, low=time * 0.9, high=time * 1.1,
              is_chosen=name == "openvino")
        for name, time in (("openvino", 0.01), ("xla", 0.0138), ("torch", 0.4))
    )  # fmt: skip
    refused = Tried("webgpu", "webgpu", "cpu", "graph", "refused", "It has no cumsum.")
    view = PlanView("race", Why("openvino", "cpu", "warn", (), (), (), (), (), (*rows, refused)))
    _open(browser, view, tmp_path)
    assert browser.evaluate("document.querySelectorAll('#race .interval').length") == 9
    race = browser.evaluate("document.getElementById('race').innerText")
    assert "9.00 ms to 11.0 ms" in race
    assert "It has no cumsum." in race
    changes = browser.evaluate("document.getElementById('changes').innerText")
    assert "without openvino" in changes
    assert "+38%" in changes
    assert "Not in the plan, so that it is the same without them: xla, torch." in changes
    assert browser.problems() == []


def test_data_of_the_page_is_json_that_ends_no_script(zoo_view: PlanView) -> None:
    zoo_view = replace(zoo_view, name=f"{HOSTILE} & \u2028")
    page = zoo_view.to_html()
    start = page.index('id="data">') + len('id="data">')
    text = page[start : page.index("</script>", start)]
    assert not set("<>&") & set(text)
    data = json.loads(text)
    assert len(data["nodes"]) == len(zoo_view.why.nodes)
    for number, row in enumerate(data["nodes"]):
        # Every edge comes from an earlier node or an input.
        assert all(source < number for source in row[8])
