"""Mutants: the same sample for the same seed, changes that parse, faults that still apply."""

import ast
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mutants
from benchmarks.mutants import (
    GATE,
    Mutant,
    Points,
    _swap,
    conditions,
    difference,
    drawn,
    faults,
    judged,
    points,
    sample,
    selected,
)

SOURCE = '''
import numpy as np

def check(x: int, limit: int = 3, *, strict: bool = True) -> bool:
    """Compare 1 with 2."""
    if x < limit and x != 0:
        raise ValueError(f"{x} is above {limit + 1}")
    with lock():
        note(x)
    kept = [np.float32(i) for i in range(x) if i > 1]
    zip(kept, kept, strict=True)
    return combine(kept, limit) if x else False

async def decide(x: int, limit: int) -> bool:
    if (y := note(x)) and 0 <= x < limit:
        return all(y)
    return True

def _check_samples():
    return 7
'''


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mutant]:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    return Points("ops", file).found


def test_every_kind_of_point_is_found_once(found: list[Mutant]) -> None:
    changes = {(m.kind, m.before, m.after) for m in found}
    assert ("int", "3", "4") in changes
    assert ("compare", "x < limit", "(x <= limit)") in changes
    assert ("boolean", "x < limit and x != 0", "(x < limit or x != 0)") in changes
    assert ("guard", "x < limit and x != 0", "False") in changes
    assert ("filter", "i > 1", "True") in changes
    assert ("call", "note(x)", "pass") in changes
    assert ("swap", "combine(kept, limit)", "(combine(limit, kept))") in changes
    assert ("dtype", "np.float32", "np.float64") in changes
    assert ("condition", "x", "(not x)") in changes
    assert ("bool", "False", "True") in changes
    kinds = Counter(m.kind for m in found)
    assert (kinds["raise"], kinds["with"]) == (1, 1)
    assert ("always", "x < limit and x != 0", "True") in changes
    assert ("never", "x < limit and x != 0", "False") in changes
    assert ("operand", "x < limit and x != 0", "(x != 0)") in changes
    assert ("operand", "x < limit and x != 0", "(x < limit)") in changes
    assert ("link", "0 <= x < limit", "(0 < x < limit)") in changes
    assert ("link", "0 <= x < limit", "(0 <= x <= limit)") in changes
    assert ("quantifier", "all", "(any)") in changes
    # What a function that returns a bool decides; a constant becomes the other one.
    decided = [(m.kind, m.before) for m in found if m.name == "decide"]
    assert ("never", "True") in decided
    assert ("always", "True") not in decided
    # Names that a condition binds are bound all the same.
    assert any(m.kind == "never" and m.after.startswith("(((y := note(x))") for m in found)
    # Texts, samples, annotations and `strict` have no points.
    assert not any(m.before in ("7", "limit + 1") for m in found)
    assert kinds["bool"] == 3


def test_diff_shows_the_changed_line_alone(found: list[Mutant]) -> None:
    mutant = next(m for m in found if m.before == "x < limit")
    shown = difference(mutant, SOURCE.encode()).splitlines()
    assert shown == ["-    if x < limit and x != 0:", "+    if (x <= limit) and x != 0:"]


@pytest.mark.parametrize("folder", ["numerics", "store"])
def test_changed_source_parses(folder: str) -> None:
    rng = random.Random(0)
    for file, listed in points(folder).items():
        source = Path(file).read_bytes()
        for mutant in rng.sample(listed, min(12, len(listed))):
            if mutant.is_same:
                continue
            changed = mutant.apply(source)
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), mutant.key


def test_same_seed_draws_the_same_sample() -> None:
    def keys(seed: str) -> list[list[str]]:
        return [[m.key for m in slot] for slot in drawn("numerics", 5, random.Random(seed))]

    assert keys("a") == keys("a")
    assert keys("a") != keys("b")


def test_judged_changes_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "STRATA", {"store": (4, ("store",))})
    first = sample(4, 1, [])
    monkeypatch.setattr(mutants, "judged", lambda: {first[0].key: "a reason"})
    assert first[0].key not in {m.key for m in sample(4, 1, [])}
    assert len({m.key for m in first}) == len(first) == 4
    assert sample(4, 1, ["ops"]) == []


def test_every_judged_change_has_a_reason() -> None:
    assert judged()
    assert all(len(reason.split()) >= 3 for reason in judged().values())


def test_conditions_of_the_gate_have_keys_of_their_own_and_no_sample_draws_them() -> None:
    listed = conditions("store/secret.py")
    assert len({m.key for m in listed}) == len(listed) > 10
    sampled = [m for of in points("store").values() for m in of]
    assert not {"always", "never", "operand"} & {m.kind for m in sampled}
    assert all((mutants.ROOT / "tests" / path).exists() for of in GATE.values() for path in of)


def test_planted_faults_apply_and_name_their_tests() -> None:
    for fault in faults():
        source = (mutants.ROOT / fault.file).read_bytes()
        changed = fault.mutant().apply(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), fault.name
        assert bool(fault.tests) != bool(fault.equivalent), fault.name
        assert all((mutants.ROOT / test.partition("::")[0]).exists() for test in fault.tests)


def test_functions_take_the_code_of_another_text(tmp_path: Path) -> None:
    path = tmp_path / "swapped.py"
    path.write_text("class A:\n    def f(self):\n        return [x for x in (1, 2) if x > 1]\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    _swap(path, path.read_bytes().replace(b"x > 1", b"True"))
    assert names["A"]().f() == [1, 2]


def test_quick_tests_of_the_own_folder_come_first(found: list[Mutant]) -> None:
    mutant = replace(next(m for m in found if m.name == "check"), folder="store")
    place = f"{mutant.file}:{mutant.function}"
    callers = {
        place: [
            (0.1, "tests/cli/test_b.py::quick"),
            (5.0, "tests/store/test_a.py::slow"),
            (0.2, "tests/store/test_a.py::quick"),
        ]
    }
    assert selected(mutant, callers) == [
        "tests/store/test_a.py::quick",
        "tests/cli/test_b.py::quick",
        "tests/store/test_a.py::slow",
    ]
    assert selected(mutant, {}) == []
    # Of ops, what derives from the declarations of the module comes before all.
    derived = selected(replace(mutant, folder="ops", file="src/fusewire/ops/sorting.py"), {})
    assert any(name.endswith("_sample_is_right[top_k]") for name in derived)
    assert not any("[exp]" in name for name in derived)
