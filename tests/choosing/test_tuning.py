"""Level 3: kernels are tuned one by one, remembered as data, and kept only where that is faster."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.backends.webgpu.space import SPACE
from fusewire.choosing.measure import Comparison, Contender, Timing
from fusewire.choosing.race import Race, lead
from fusewire.choosing.tune import Tuning
from fusewire.cli import main
from fusewire.contract.backend import Config, Device, Fact
from fusewire.contract.buffer import Buffer
from fusewire.contract.region import build
from fusewire.contract.tuning import Piece, Tuner, parsed, written
from fusewire.errors import OptionsError
from fusewire.planning.target import Target
from fusewire.records.entries import Records
from fusewire.records.tunings import TunedKernel, keep, recall
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store

RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal((32, 32)).astype(np.float32) / 8 for _ in range(2))
KEY = "0123456789abcdef"


def layer(x: Any) -> Any:
    return np.maximum(x @ W, 0)


def deeper(x: Any) -> Any:
    return np.sum(np.maximum(x @ (W + 1), 0), axis=0)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand for the clock: what is tuned, or has this tile, is twice as fast; lists all ways."""
    seen: list[str] = []

    def compare(ways: Mapping[str, Contender], *rest: object, **more: object) -> Comparison:
        seen.extend(ways)
        taken = {way: Timing((0.5 if _is_fast(way) else 1.0,)) for way in ways}
        fastest = min(ways, key=lambda way: taken[way].median)
        return Comparison(taken, fastest, (), 0.0, 1)

    monkeypatch.setattr("fusewire.choosing.race.compare", compare)
    # Each choice is compiled: few of them, so that tests are short.
    few = {**SPACE, "tiles": {"tile": ((8, 4),), "workgroup": (64,)}, "points": {"points": (4,)}}
    monkeypatch.setattr("fusewire.backends.webgpu.space.SPACE", few)
    return seen


def _is_fast(way: str) -> bool:
    return way.endswith("tuned") or "tile=(8, 4)" in way


def tuned(f: Any, **more: Any) -> Any:
    return fw.compile(f, backend="webgpu", level=3, start="measured", budget_seconds=300.0, **more)


def target() -> Target:
    backend = REGISTRY.get("webgpu")
    device = backend.probe()[0]
    assert isinstance(device, Device)
    return Target(backend, device)


def pieces(f: Any) -> list[Piece]:
    found = target()
    assert isinstance(found.backend, Tuner)
    return list(found.backend.pieces(fw.trace(f, X), found.device, Config()))


def test_kernels_are_tuned_and_the_whole_is_faster(store: Store, timed: list[str]) -> None:
    said: list[str] = []
    program = tuned(layer, progress=lambda what, share: said.append(what))
    np.testing.assert_allclose(program(X), layer(X), atol=1e-5)
    best = program.why().tried[0]
    assert best.name == "webgpu (webgpu:0) tuned"
    assert best.status == "right"
    (kernel,) = best.tuned
    assert kernel["chosen"] == {"tile": (8, 4), "workgroup": 256}
    assert kernel["gain"] == 2.0
    assert "1 of 1 tuned kernels have another configuration" in program.why().notes[-1]
    assert said.index("weighing kernel 1 of 1") < said.index("tuning kernel 1 of 1")
    # Tuned and untuned meet in the end.
    assert timed[-2:] == ["webgpu (webgpu:0)", "webgpu (webgpu:0) tuned"]
    json.dumps(program.why().to_data())


def test_another_model_with_the_same_kernel_times_none(store: Store, timed: list[str]) -> None:
    tuned(layer)(X)
    timed.clear()
    program = tuned(deeper)
    np.testing.assert_allclose(program(X), deeper(X), rtol=1e-4)
    known = [x for x in program.why().tried[0].tuned if x["cache"] == "hit"]
    assert [x["chosen"]["tile"] for x in known] == [(8, 4)]
    assert not any("tile=(8, 4)" in way for way in timed)
    assert "1 were known" in program.why().notes[-1]


def test_what_was_chosen_is_recalled_and_nothing_is_timed(store: Store, timed: list[str]) -> None:
    tuned(layer)(X)
    timed.clear()
    again = tuned(layer)
    np.testing.assert_allclose(again(X), layer(X), atol=1e-5)
    assert not timed
    assert again.why().tried[0].tuned[0]["chosen"]["tile"] == [8, 4]


def test_what_is_tuned_and_slower_is_not_kept(
    store: Store, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "_is_fast", lambda way: "tile=(8, 4)" in way)
    program = tuned(layer)
    program(X)
    best, other = [row for row in program.why().tried if row.backend == "webgpu"]
    assert best.name == "webgpu (webgpu:0)"
    assert other.tuned
    assert not other.is_chosen


def test_a_budget_that_is_used_up_is_said(store: Store) -> None:
    program = fw.compile(layer, backend="webgpu", level=3, start="measured", budget_seconds=0.01)
    np.testing.assert_allclose(program(X), layer(X), atol=1e-5)
    assert "1 were not tuned: the budget was used up" in program.why().notes[-1]


def kept(store: Store) -> int:
    return len(list(store.entries("tuning")))


def test_what_was_cut_short_is_not_kept_and_a_larger_budget_goes_on(
    store: Store, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # No way but the first is tried in time.
        patch.setattr("fusewire.choosing.race.TRYING", -1.0)
        program = tuned(layer)
        program(X)
    assert (
        "1 were tuned in part: the budget was used up. Try budget_seconds=600"
        in (program.why().notes[-1])
    )
    assert not kept(store)
    program = fw.compile(layer, backend="webgpu", level=3, start="measured", budget_seconds=600.0)
    program(X)
    assert program.why().tried[0].tuned[0]["chosen"]["tile"] == (8, 4)
    assert kept(store)


def test_what_was_found_in_time_is_used_and_not_kept(
    store: Store, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadline(self: Tuning) -> float:
        return 0.0 if any("tile=(8, 4)" in way for way in timed) else math.inf

    monkeypatch.setattr(Tuning, "deadline", property(deadline))
    program = tuned(layer)
    program(X)
    (kernel,) = program.why().tried[0].tuned
    assert kernel["chosen"]["tile"] == (8, 4)
    assert kernel["gain"] == 2.0
    assert kernel["is_late"]
    assert not kept(store)


@pytest.mark.parametrize(
    ("ties", "noise", "gain"), [((), 0.0, 2.0), ((), 0.9, 2.0), ((), 1.5, 1.0), (("a",), 0.0, 1.0)]
)
def test_what_may_be_noise_is_no_gain(ties: tuple[str, ...], noise: float, gain: float) -> None:
    rows = [SimpleNamespace(name=n, seconds=x, low=x) for n, x in (("a", 1.0), ("b", 0.5))]
    found: Any = SimpleNamespace(tried=rows, chosen=rows[1], ties=ties, noise=noise)
    before: Any = rows[0]
    assert lead(found, before) == gain


def test_first_decision_stands_if_all_fail_when_they_meet(
    store: Store, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(self: Race) -> None:
        for name, row in self._rows.items():
            self._rows[name] = replace(row, status="refused", reason="The device was lost.")

    before = Race.rematch

    def rematch(self: Race, *given: Any) -> Any:
        monkeypatch.setattr(Race, "_compare", compare)
        return before(self, *given)

    monkeypatch.setattr(Race, "rematch", rematch)
    program = tuned(layer, fallback="error")
    np.testing.assert_allclose(program(X), layer(X), atol=1e-5)
    assert program.why().tried[0].name == "webgpu (webgpu:0)"
    assert (
        "failed in the race against tuned kernels, and stays as it was" in program.why().notes[-1]
    )


def test_what_was_judged_does_not_win_untimed(
    store: Store, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "_is_fast", lambda way: "tile=(8, 4)" in way)
    before = Race._check

    def judge(self: Race, name: str) -> None:
        before(self, name)
        if name == "webgpu (webgpu:0)":
            self._rows[name] = replace(self._rows[name], status="not judged")

    monkeypatch.setattr(Race, "_check", judge)
    program = tuned(layer)
    program(X)
    assert program.why().tried[0].name == "webgpu (webgpu:0)"
    assert timed[-2:] == ["webgpu (webgpu:0)", "webgpu (webgpu:0) tuned"]


def test_real_clocks_tune_too(store: Store) -> None:
    program = fw.compile(layer, backend="webgpu", level=3, start="measured", budget_seconds=3.0)
    np.testing.assert_allclose(program(X), layer(X), atol=1e-5)
    assert program.why().tried[0].status == "right"


GOOD: dict[str, Any] = {"tile": [8, 4], "workgroup": 64, "depth": 8}


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        *(
            json.dumps(row).encode()
            for row in (
                {"chosen": GOOD},
                {"chosen": GOOD, "gain": "fast"},
                {"chosen": GOOD, "gain": -1.0},
                {"chosen": GOOD, "gain": float("nan")},
                {"chosen": {**GOOD, "tile": [3, 3]}, "gain": 2.0},
                {"chosen": {**GOOD, "tile": 8}, "gain": 2.0},
                {"chosen": {**GOOD, "workgroup": True}, "gain": 2.0},
                {"chosen": {**GOOD, "workgroup": 64.0}, "gain": 2.0},
                {"chosen": {**GOOD, "debug": 1}, "gain": 2.0},
                {"chosen": {"tile": [8, 4]}, "gain": 2.0},
                {"chosen": [8, 4], "gain": 2.0},
            )
        ),
    ],
)
def test_a_record_of_anything_else_is_refused(held: bytes) -> None:
    (piece,), records = pieces(layer), Records(None)
    backend, device = target().backend, target().device
    chosen: dict[str, Fact] = {**GOOD, "tile": (8, 4)}
    keep(records, backend, device, piece, TunedKernel(piece.key, piece.name, 1, chosen, 2.0, True))
    found = recall(records, backend, device, piece)
    assert found is not None
    assert found.chosen == chosen
    ((digest, _),) = records._payloads.items()
    records._payloads[digest] = held
    assert recall(records, backend, device, piece) is None
    assert not records._payloads


def test_options_name_kernels_and_ranges() -> None:
    kept: dict[str, dict[str, Fact]] = {KEY: {"tile": (8, 4), "workgroup": 64}}
    assert parsed(written(kept), {"tile", "workgroup"}) == kept
    assert parsed((), set()) == {}
    graph, here = fw.trace(layer, X), target()
    unknown = [
        (f"{x}=1", f"{x} configures no kernel") for x in ("memory", "debug", "tuned", "speed")
    ]
    ranges = [("tile=3,3", "tile="), ("workgroup=0", "workgroup="), ("a=b", "a line is KEY")]
    for line, said in ranges + unknown:
        with pytest.raises(OptionsError, match=said):
            here.backend.compile(graph, here.device, Config(options={"tuned": (f"{KEY} {line}",)}))


def test_each_kernel_is_cut_as_it_is_told() -> None:
    here = target()

    def two(x: Any) -> Any:
        return np.sum(layer(x) @ W, axis=1)

    found = {piece.key: piece for piece in pieces(two)}
    last = {key: {n: x[-1] for n, x in piece.axes.items()} for key, piece in found.items()}
    config = Config(options={"tuned": written(last)})
    graph = fw.trace(two, X)
    artifact = here.backend.compile(graph, here.device, config)
    assert artifact.launch["tuned"] == len(found) > 1
    assert artifact.payload != here.backend.compile(graph, here.device, Config()).payload
    (got,) = build(here.backend, graph, here.device, config).run([X])
    assert isinstance(got, Buffer)
    np.testing.assert_allclose(got.read(), two(X), atol=1e-4)


def test_bench_shows_what_was_tuned(store: Store, timed: list[str], tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(layer, X), model)
    asked = ["bench", str(model), "--backends", "webgpu", "--level", "3", "--budget", "300"]
    found = CliRunner().invoke(main, [*asked, "--json"])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["chosen"] == "webgpu (webgpu:0) tuned"
    assert report["rows"][0]["is_software"] == target().device.is_software
    shown = CliRunner().invoke(main, [*asked, "--markdown"]).stdout
    assert "1 of 1 kernels: linear + activation float32[32, 32] 2.00 times as fast" in shown
