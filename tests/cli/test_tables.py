"""Tables fit the screen without cutting a name, and a summary says who won."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from fusewire.choosing.budget import Coverage
from fusewire.cli.comparison import remarks
from fusewire.cli.ranking import covered, summary
from fusewire.show.report import candidates, with_ratios
from fusewire.tables import Column, Sheet


def sheet(**how: Any) -> Sheet:
    shown = Sheet(
        "engine",
        Column("ms", align="right"),
        Column("compile", "extra"),
        Column("memory", "extra"),
        Column("why", "prose"),
        **how,
    )
    shown.add("onnxruntime expanded", "12.3", "1.2 s", "96 MB", "word " * 30)
    shown.add("openvino", "9.1", "0.4 s", "136 MB", "pip install 'fusewire[webgpu]'")
    return shown


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_table_fits_and_cuts_no_name(width: int) -> None:
    lines = sheet().to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("onnxruntime expanded" in line for line in lines)
    assert "…" not in "".join(lines)
    # Rich would take the extra for a style, and leave it out.
    assert any("'fusewire[webgpu]'" in line for line in lines)


def test_extra_columns_are_shown_where_there_is_room_and_named_where_there_is_none() -> None:
    assert "compile" not in sheet().to_text(60).splitlines()[0]
    assert "--wide shows compile, memory too" in sheet().to_text(60)
    assert "compile  memory" in sheet().to_text(120)
    wide = sheet(is_wide=True).to_text(60)
    assert "compile  memory" in wide.splitlines()[0]
    assert "--wide" not in wide


def test_name_wider_than_the_screen_folds() -> None:
    shown = Sheet("name", "type")
    shown.add("n" * 100, "float32[1]")
    lines = shown.to_text(80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("n") - len("name"[:1]) == 100


def test_control_characters_are_escaped_in_text_and_html() -> None:
    shown = Sheet("name", title="<b>\x1b[2J")
    shown.add("<script>\x1b[2J")
    for text in (shown.to_text(80), shown.to_html()):
        assert "\x1b" not in text
        assert "\\x1b" in text
    assert "<script>" not in shown.to_html()
    assert "<b>" not in shown.to_html()


def row(name: str, seconds: float | None, spread: float = 0.05, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "backend": name.split()[0],
        "status": "right" if seconds else "not tried",
        "seconds": seconds,
        "low": seconds and seconds * (1 - spread),
        "high": seconds and seconds * (1 + spread),
        "is_chosen": False,
        "is_software": False,
        "is_barred": False,
        "here_low": None,
        "here_high": None,
        "elsewhere": 0,
        "compile_seconds": 0.1,
        "memory_bytes": 10**8,
        "error": 0.5,
        **changes,
    }


def report(*rows: dict[str, Any], noise: float = 0.03, **changes: Any) -> dict[str, Any]:
    return {
        "rows": with_ratios(rows),
        "noise": noise,
        "seconds": 14.0,
        "budget_seconds": 20.0,
        "machine": {"cores": 2},
        "load": {"before": 0.4, "during": 2.1},
        **changes,
    }


def test_winner_is_compared_with_the_next_engine() -> None:
    first, second = summary(
        report(
            row("onnxruntime", 1.42e-3),
            row("openvino", 1e-3, is_chosen=True),
            row("openvino expanded", 1.1e-3),
        )
    )
    assert first == "openvino ran 1.42 ± 0.10 times faster than onnxruntime."
    assert second == "3 candidates in 14 s. Noise 3%; load 0.4 before, 2.1 during on 2 cores."


def test_ties_are_called_ties() -> None:
    rows = row("a", 1.02e-3, is_chosen=True), row("b", 1e-3), row("c", 2e-3)
    first, _ = summary(report(*rows))
    assert first == "a and b tie, 1.96 ± 0.14 times faster than c."


def test_candidates_with_the_same_reason_share_a_line() -> None:
    over: dict[str, Any] = {
        "reason": "Raise budget_seconds.",
        "tuned": (),
        "judged_on": (),
        "version": "1",
    }
    rows = (row("a", None, **over), row("b", None, **over), row("c", None, **over | {"reason": ""}))
    about = {"processor": "x", "cores": 2, "system": "Linux"}
    empty: dict[str, Any] = {
        "notes": [],
        "missing": {},
        "inputs": [],
        "threads": None,
        "versions": {},
        "date": "",
    }
    lines = list(remarks(report(*rows, machine=about, **empty)))
    assert lines[0] == ("not tried", "a, b: Raise --budget.")
    assert [name for name, _ in lines].count("not tried") == 1


def once(name: str, seconds: float, **changes: Any) -> dict[str, Any]:
    return row(name, seconds, low=None, high=None, **changes)


def test_one_sample_shows_neither_an_interval_nor_a_tie() -> None:
    winner = row("a", 1e-3, is_chosen=True)
    for chosen in (winner, once("a", 1e-3, is_chosen=True)):
        first, _ = summary(report(chosen, once("b", 4e-3)))
        assert first == "a ran 4.0 times faster than b (one sample)."
        first, _ = summary(report(chosen, once("b", 1.02e-3)))
        assert first == "One sample does not tell a and b apart."
    shown = candidates(with_ratios([winner, once("b", 4e-3)]))
    line = next(line for line in shown.to_text(120).splitlines() if "b " in line)
    assert "%" not in line
    assert line.split()[:4] == ["b", "4.00", "-", "4.00"]
    assert shown.to_html().count("%") == 2, "the name of the column, and the interval of a"


def test_intervals_that_do_not_touch_rank_whatever_the_noise() -> None:
    rows = row("a", 1e-3, is_chosen=True), row("b", 2e-3)
    first, second = summary(report(*rows, noise=9.9))
    assert first == "a ran 2.00 ± 0.14 times faster than b."
    assert second.endswith("Noise above 100%; load 0.4 before, 2.1 during on 2 cores.")


def test_intervals_that_touch_tie_whatever_the_noise() -> None:
    rows = row("a", 1e-3, 0.4, is_chosen=True), row("b", 1.3e-3, 0.4), row("c", 4e-3)
    first, _ = summary(report(*rows, noise=0.0))
    assert first.startswith("a and b tie, 4.00 ")


def test_row_that_is_beaten_in_its_own_table_is_said_first() -> None:
    rows = row("a", 2e-3, is_chosen=True), row("b", 1e-3), row("c", 1e-3, status="wrong")
    for said in (summary(report(*rows)), summary(report(*rows, noise=9.9))):
        assert next(said) == "Not settled: a is used, and b was faster in a comparison."


def test_times_of_a_duel_are_columns_of_their_own() -> None:
    here = {"here": 2.5e-3, "here_low": 2.4e-3, "here_high": 2.6e-3}
    rows = [row("openvino nan=engine sizes=fitted", 1e-3, **here), row("onnxruntime", 2e-3)]
    rows += [row("your function", None, **here | {"here": 2e-3}, is_chosen=True)]
    shown = candidates(with_ratios(rows))
    lines = shown.to_text(80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split("  ")[-1].strip() == "verdict"
    assert "here, ms" in lines[0]
    function = next(line.split() for line in lines if "your function" in line)
    assert function[:7] == [">", "your", "function", "-", "-", "-", "2.00"]
    assert "4%" in shown.to_text(200)
    assert "here" not in candidates(with_ratios(rows[1:2])).to_text(200)


def test_row_that_ties_from_the_top_of_the_table_is_named() -> None:
    rows = row("a file", 1e-3), row("a expanded", 1.01e-3, is_chosen=True), row("b", 2e-3)
    first, _ = summary(report(*rows))
    assert first == "a expanded and a file tie, 1.98 ± 0.14 times faster than b."


def test_what_was_left_out_is_said_with_the_budget_that_covers_it() -> None:
    rows = row("a", 1e-3, is_chosen=True), row("b", 2e-3), row("c", None), row("d", None)
    coverage = asdict(Coverage(2, 4, 60))
    said = covered(report(*rows, coverage=coverage))
    assert said == "2 of 4 candidates were compared; --budget 60 compares all."


def test_table_of_candidates_is_whole_at_80_columns() -> None:
    rows = [row("onnxruntime", 1e-3), row("openvino nan=engine expanded", 2e-3, is_chosen=True)]
    rows += [row("webgpu (webgpu:0) expanded", None, is_software=True)]
    lines = candidates(with_ratios(rows)).to_text(80).splitlines()
    assert max(map(len, lines)) <= 80
    for words in (["onnxruntime", "1.00", "right"], ["openvino nan=engine expanded", "2.00"]):
        assert [line for line in lines if all(word in line for word in words)]
    assert [line for line in lines if line.startswith(">") and "openvino nan" in line]
    assert "compile" not in lines[0]
    assert "95% interval" in candidates(with_ratios(rows)).to_text(120).splitlines()[0]
