"""`fusewire bench` and `fusewire explain`: engines compared on a model, and why it runs so."""

import json
import time
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fusewire as fw
from fusewire.cli import bench, main
from fusewire.cli.advice import for_commands
from fusewire.cli.comparison import markdown
from fusewire.cli.plot import plot
from fusewire.contract.backend import Device
from fusewire.planning.policy import why_left_out
from fusewire.planning.target import Target
from fusewire.process.child import Child
from fusewire.registry import REGISTRY
from fusewire.show.report import digits

QUICK = ("--budget", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)

    def network(x: Any) -> Any:
        return np.tanh(x @ weights) @ weights

    path = tmp_path_factory.mktemp("bench") / "model.onnx"
    fw.save_onnx(fw.trace(network, fw.Spec(("n", 64), "float32")), path)
    return path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def report(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(main, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(model: Path) -> Any:
    return report(
        "bench",
        model,
        "--shape",
        "x=8,64",
        "--budget",
        "20",
        "--backends",
        "reference,onnxruntime,openvino,xla",
    )


def test_every_engine_is_timed_and_judged_and_one_is_chosen(found: Any) -> None:
    assert {row["backend"] for row in found["rows"]} == {
        "reference",
        "onnxruntime",
        "openvino",
        "xla",
    }
    for row in found["rows"]:
        assert row["status"] == "right", row
        assert row["low"] <= row["seconds"] <= row["high"]
        assert row["error"] <= 1
        assert "given" in row["judged_on"]
        assert row["version"]
    (chosen,) = [row for row in found["rows"] if row["is_chosen"]]
    times = [row["seconds"] for row in found["rows"]]
    assert times == sorted(times)
    assert found["chosen"] == chosen["name"]
    assert min(row["ratio"] for row in found["rows"]) == 1.0
    assert found["noise"] >= 0


def test_report_says_where_it_comes_from(found: Any) -> None:
    assert found["inputs"] == [
        {"name": "x", "type": "float32[8, 64]", "is_given": False, "assumed": {}}
    ]
    assert found["machine"]["cores"] >= 1
    assert found["versions"].keys() == {"fusewire", "python"}
    text = markdown(found)
    for word in (
        "**fusewire bench model.onnx**",
        "x float32[8, 64], generated",
        "during on",
        found["date"],
        "judged on inputs: given",
    ):
        assert word in text
    header, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in (header, rule, *rows)}) == 1
    assert len(rows) == len(found["rows"])
    assert [line for line in rows if line.startswith(f"| **{found['chosen']}**")]


def parts(svg: str, kind: str) -> list[ET.Element]:
    return ET.fromstring(svg).findall(f".//{{http://www.w3.org/2000/svg}}{kind}")


def texts(svg: str) -> list[str]:
    return [part.text or "" for part in parts(svg, "text")]


def row(name: str, seconds: float | None, **changes: Any) -> dict[str, Any]:
    timed = seconds is not None
    return {
        "name": name,
        "status": "right" if timed else "refused",
        "seconds": seconds,
        "low": seconds and seconds * 0.9,
        "high": seconds and seconds * 1.1,
        "ratio": seconds and seconds / 1e-3,
        "is_chosen": False,
        "is_software": False,
        "elsewhere": 0,
        **changes,
    }


def drawn(*rows: dict[str, Any]) -> str:
    return plot(
        {
            "model": "folder/<odd>.onnx",
            "rows": rows,
            "date": "2026-11-15",
            "inputs": [{"name": "x", "type": "float32[1]"}],
            "machine": {"processor": "Some & Co", "cores": 2},
        }
    )


def test_plot_has_a_bar_for_each_time_as_long_as_it() -> None:
    svg = drawn(row("a", 1e-3, is_chosen=True), row("b", 4e-3), row("c", None))
    short, long = (float(bar.attrib["width"]) for bar in parts(svg, "rect"))
    assert long == pytest.approx(4 * short, rel=1e-2)
    said = texts(svg)
    assert "fusewire bench <odd>.onnx" in said
    assert "1.00 ms (chosen)" in said
    assert "4.00 ms (4.00x)" in said
    assert "refused" in said
    assert not any("log" in text for text in said)


def test_plot_has_no_whisker_for_one_sample() -> None:
    rows = row("a", 1e-3), row("b", 4e-3)
    single = [{**row, "low": None, "high": None} for row in rows]
    assert len(parts(drawn(*rows), "rect")) == len(parts(drawn(*single), "rect")) == 2
    ticks = len(parts(drawn(*single), "line"))
    assert len(parts(drawn(single[0], rows[1]), "line")) == ticks + 3


def test_plot_of_times_far_apart_is_by_powers() -> None:
    svg = drawn(row("a", 1e-3), row("b", 1e-1), row("c", 10.0, elsewhere=3, is_software=True))
    widths = [float(bar.attrib["width"]) for bar in parts(svg, "rect")]
    assert widths[2] - widths[1] == pytest.approx(widths[1] - widths[0], rel=1e-2)
    assert widths[0] > 10
    said = texts(svg)
    assert "ms a call (log scale)" in said
    assert "10,000 ms (10,000x, split)" in said
    assert "c, software" in said


@pytest.mark.parametrize(
    ("number", "said"), [(1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012")]
)
def test_numbers_have_three_digits(number: float, said: str) -> None:
    assert digits(number) == said


@pytest.fixture
def split(tmp_path: Path) -> Iterator[Path]:
    """A model with two nodes that the backend "split" does not take."""
    path = tmp_path / "split.onnx"
    graph = fw.trace(lambda x: np.cos(np.tanh(np.cos(x))), fw.Spec(("n", 64), "float32"))
    fw.save_onnx(graph, path)
    fw.register("tests.toy:split", name="split")
    yield path
    fw.unregister("split")


def test_nodes_that_an_engine_refuses_are_counted_and_the_split_is_timed(split: Path) -> None:
    words = ("bench", split, "--shape", "x=8,64", *QUICK, "--backends", "split,reference")
    rows = {row["backend"]: row for row in report(*words)["rows"]}
    assert rows["split"]["elsewhere"] == 2
    assert "cos" in rows["split"]["elsewhere_why"]
    assert rows["split"]["seconds"] > 0
    refused = {row["backend"]: row for row in report(*words, "--fallback", "error")["rows"]}
    assert refused["split"]["status"] == "refused"
    assert "cos" in refused["split"]["reason"]
    assert refused["split"]["seconds"] is None


@pytest.fixture
def wrong() -> Iterator[str]:
    name = REGISTRY.register("fusewire.testing.chaos:channel_at_run", "chaos")
    yield name
    REGISTRY.unregister(name)


def test_wrong_engine_is_shown_not_chosen_and_alone_ends_with_1(model: Path, wrong: str) -> None:
    # Time enough for a verdict on a machine that others use.
    given = ("bench", model, "--shape", "x=8,64", "--budget", "10", "--backends")
    done = report(*given, wrong, code=1)
    assert done["chosen"] is None
    (found,) = done["rows"]
    assert (found["status"], found["seconds"]) == ("wrong", None)
    assert "expected" in found["reason"]
    both = report(*given, f"{wrong},reference")
    assert both["chosen"] == "reference"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backends", "nobody"], "nobody"),
        (["--level", "0"], "level 1"),
        (["--level", "4"], "levels are 0, 1, 2, 3"),
        (["--budget", "-1"], "--budget"),
        (["--shape", "z=1"], "z=1"),
    ],
)
def test_wrong_option_ends_with_2(model: Path, words: list[str], said: str) -> None:
    done = invoke("bench", model, *words)
    assert done.exit_code == 2, done.output
    assert said in done.output


def test_engines_are_probed_side_by_side(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["onnxruntime", "openvino", "xla"]
    probe, times = REGISTRY._meeting, dict[str, tuple[float, float]]()

    def timed(name: str, *rest: Any) -> Any:
        start = time.monotonic()
        met = probe(name, *rest)
        times.setdefault(name, (start, time.monotonic()))
        return met

    for name in names:
        REGISTRY.close(name)
    monkeypatch.setattr(REGISTRY, "_meeting", timed)
    report("bench", model, "--shape", "x=8,64", "--budget", "10", "--backends", ",".join(names))
    assert max(start for start, _ in times.values()) < min(end for _, end in times.values())


def test_one_of_like_devices_is_compared_unless_all_are_asked_for() -> None:
    backend = REGISTRY.get("xla")
    targets = [Target(backend, Device(name, "x"), None) for name in ("cpu", "cpu:1", "cpu:other")]

    def compared(*devices: str) -> list[str]:
        return [target.device.id for target in bench._on_any(targets, devices)]

    assert compared() == ["cpu", "cpu:other"]
    assert compared("all") == ["cpu", "cpu:1", "cpu:other"]
    assert compared("cpu:1") == ["cpu:1"]


def test_engine_may_be_named_as_the_advice_says(model: Path) -> None:
    advice = for_commands(why_left_out(REGISTRY.get("inductor").info))
    assert advice.endswith("s or more, use --level 2, or use --backend inductor.")
    assert invoke("bench", model, "--backend", "nobody").exit_code == 2
    assert "nobody" in invoke("bench", model, "--backend", "nobody").output


def test_explain_says_who_refuses_what(split: Path) -> None:
    words = ("explain", split, "--shape", "x=8,64", "--backend", "split")
    text = invoke(*words).stdout
    assert "split refuses 2 of 3 nodes" in text
    assert "2 on reference, 1 on split" in text
    why = report(*words)
    assert [node["op"] for node in why["nodes"]] == ["cos", "tanh", "cos"]
    assert why["counts"]["data"] == {"reference": 2, "split": 1}
    assert "cos" in report(*words, "--node", "2")["verdicts"][0]["reason"]
    assert "node 2: cos" in invoke(*words, "--node", "2").stdout


def test_explain_shows_what_was_compared(model: Path) -> None:
    words = ("explain", model, "--shape", "x=8,64", "--device", "cpu", *QUICK)
    why = report(*words)
    assert any(way["is_chosen"] for way in why["tried"])
    said = {verdict["backend"]: verdict for verdict in why["nodes"][0]["verdicts"]}
    assert said[why["backend"]]["seconds"] > 0


@pytest.fixture
def refusing() -> Iterator[str]:
    """An engine that takes a graph, and cannot compile it."""
    yield REGISTRY.register("fusewire.testing.chaos:raise_at_compile")
    REGISTRY.unregister("chaos")


def test_refused_candidate_says_why_in_every_table(model: Path, refusing: str) -> None:
    words = (model, "--shape", "x=8,64", "--budget", "5")
    compared = report("bench", *words, "--backends", f"{refusing},reference")
    (row,) = [row for row in compared["rows"] if row["status"] == "refused"]
    assert "chaos failed while compiling" in row["reason"]
    assert row["reason"] in markdown(compared)
    shown = invoke("bench", *words, "--backends", f"{refusing},reference").output
    assert "chaos failed while compiling" in " ".join(shown.split())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fw.FallbackWarning)
        program = fw.compile(model, level=1, start="measured", budget_seconds=5)
        program(np.zeros((8, 64), np.float32))
    why = program.why()
    assert [row for row in why.tried if row.status == "refused"] != []
    refused = f"refused: {refusing}. chaos failed while compiling"
    assert refused in str(why)
    assert refused in why._repr_html_()
    assert "chaos failed while compiling" in why.to_json()


def test_explain_of_a_node_that_is_not_there_ends_with_1(model: Path) -> None:
    done = invoke("explain", model, "--shape", "x=8,64", "--backend", "reference", "--node", "9")
    assert done.exit_code == 1
    assert "0 to 2" in done.output


def test_engine_whose_process_does_not_start_is_a_row(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Child.greet

    def greet(child: Child, seconds: float) -> float:
        # Slow beyond measure, whatever the engine.
        return start(child, 0.0 if "xla" in child.name else seconds)

    REGISTRY.close("xla")
    monkeypatch.setattr(Child, "greet", greet)
    words = ("bench", model, "--shape", "x=8,64", "--backends", "onnxruntime,xla")
    found = report(*words)
    rows = {row["backend"]: row for row in found["rows"]}
    assert rows["onnxruntime"]["status"] == "right"
    assert rows["xla"]["status"] == "not started"
    shown = markdown(found)
    assert "The process of" in shown
    assert "--isolate never" in shown
    monkeypatch.undo()
    REGISTRY.close("xla")
