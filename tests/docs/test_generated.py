"""The generated parts of README.md and docs/*.md say what the code and recorded results say."""

import shutil
from pathlib import Path

import pytest

from docs.generate import PAGES, PART, PARTS, ROOT, features, generated, link_to_test, stale


def test_generated_parts_are_current() -> None:
    problems = [line for name, lines in stale(ROOT).items() for line in (f"{name}:", *lines)]
    assert not problems, "\n".join([*problems, "Run `python docs/generate.py`."])


def test_every_part_stands_in_a_page() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in PAGES]
    assert {part["name"] for text in texts for part in PART.finditer(text)} == PARTS.keys()


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("docs/commands.md", "| `fusewire bench MODEL` | Makes tea. |"),
        ("docs/engines.md", "| `abacus` | abacus>=1 |"),
        ("docs/commands.md", "  --sugar     Add sugar."),
        ("docs/conformance.md", "| `abacus` | 291 | 100% | 0 | 0 | 0 | today |"),
        ("docs/ops.md", "| `brew` | primitive | Make tea. | floats | abacus |"),
    ],
)
def test_planted_line_is_found(page: str, line: str, tmp_path: Path) -> None:
    target = tmp_path / page
    target.parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / page, target)
    text = target.read_text(encoding="utf-8")
    target.write_text(text.replace("\n\n<!-- end -->", f"\n{line}\n\n<!-- end -->", 1))
    assert stale(tmp_path, [page]) == {page: [f"- {line}"]}
    assert generated(target.read_text(encoding="utf-8")) == text


def test_removed_line_is_found(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("| `softmax` |")]
    (tmp_path / "ops.md").write_text(text.replace(f"{line}\n", ""), encoding="utf-8")
    assert stale(tmp_path, ["ops.md"]) == {"ops.md": [f"+ {line}"]}


def test_part_that_nothing_generates_is_refused() -> None:
    with pytest.raises(ValueError, match="'tea' is not a part; parts: extras"):
        generated("<!-- generated: tea -->\n<!-- end -->\n")


def test_founding_list_has_33_lines_and_names_tests_that_exist() -> None:
    assert "\n".join(features()).count("- Shown by: ") == 33
    with pytest.raises(ValueError, match="test_nothing, which does not exist"):
        link_to_test("tests/docs/test_generated.py::test_nothing")
