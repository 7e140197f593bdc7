"""What people see of a program: help, tables, HTML, log lines, and where warnings point."""

from __future__ import annotations

import inspect
import logging
import typing
import warnings
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import StoreWarning
from fusewire.options import MEANINGS, OptionFields
from fusewire.store.disk import Store
from fusewire.store.key import Key

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_every_option_has_a_meaning_and_is_a_keyword() -> None:
    names = [field.name for field in fields(fw.Options)]
    assert sorted(MEANINGS) == sorted(names)
    assert sorted(OptionFields.__annotations__) == sorted(names)
    types = typing.get_type_hints(fw.Options)
    assert typing.get_type_hints(OptionFields) == {name: types[name] for name in names}
    parameters = inspect.signature(fw.compile).parameters
    assert list(parameters) == ["source", "example", "options", "registry", *names]
    assert parameters["budget_seconds"].default == fw.Options().budget_seconds
    assert "budget_seconds (20.0): the time" in (fw.compile.__doc__ or "")


def test_why_prints_a_table_and_has_a_short_repr() -> None:
    options = fw.Options(backend="reference", level=1, budget_seconds=1, start="measured")
    program = fw.compile(lambda x: np.tanh(x) + 1, options=options)
    program(X)
    text = str(program.why())
    assert "Runs on reference (cpu): 2 nodes in 1 region" in text
    assert "verdict" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(repr(program.why())) < 120


class Tags(HTMLParser):
    """Collects tags, and refuses any that would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "onload", "onerror"} & {name for name, _ in attrs}
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_whole_escaped_and_loads_nothing() -> None:
    graph = fw.trace(lambda x: np.tanh(x) + 1, X)
    odd = fw.Graph(graph.inputs, graph.outputs, name="<script>alert(1)</script>")
    program = fw.compile(odd, backend="reference")
    program(X)
    for shown in (odd, program, program.why(), fw.compile(lambda x: x)):
        text = shown._repr_html_()
        tags = Tags()
        tags.feed(text)
        assert not tags.open
        assert "script" not in tags.seen
    assert "&lt;script&gt;" in odd._repr_html_()
    assert "reference (cpu): 2 nodes" in program._repr_html_()


@pytest.fixture
def split() -> Iterator[str]:
    fw.register("tests.toy:split", name="split")
    yield "split"
    fw.unregister("split")


def test_warnings_point_at_the_line_of_the_caller(split: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fw.compile(lambda x: np.cos(np.tanh(x)), X, backend=split, level=0)
    (warning,) = [one for one in caught if one.category is fw.FallbackWarning]
    assert Path(warning.filename) == Path(__file__)
    line = Path(__file__).read_text().splitlines()[warning.lineno - 1]
    assert "backend=split, level=0" in line


def test_log_has_long_work_and_fallbacks(split: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fusewire")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fw.compile(lambda x: np.cos(np.tanh(x)), X, backend=split, level=0)
        program = fw.compile(np.exp, backend="reference", level=1, budget_seconds=1, threads=1)
        program(X)
        program.wait(30)
    said = {record.levelno: record.getMessage() for record in caplog.records}
    assert "do not run on split" in said[logging.WARNING]
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("Comparing engines for exp")]


def test_log_has_problems_of_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.warns(StoreWarning, match="cannot open") as caught:
        Store(tmp_path / "cache").get(Key.of("plan", graph="c0ffee"))
    assert Path(caught[0].filename) == Path(__file__)
    assert "cannot open" in caplog.records[0].getMessage()
