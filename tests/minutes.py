"""Print where the time of a run went: by step and folder, and of the slowest tests.

    python -m tests.minutes FILE [COUNT]

FILE is what ``pytest --junitxml`` wrote, or what ``.ci/run`` or ``pytest --durations 0`` printed.
Set-up that tests share counts for the first of them.
"""

import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_STEP = re.compile(r"^== (\w+) took (\d+) s$", re.MULTILINE)
_DURATION = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +(tests/.*\S)", re.MULTILINE)
_PARAMETERS = re.compile(r"\[.*\]$", re.DOTALL)


def step_seconds(text: str) -> dict[str, float]:
    """Read what the steps of ``.ci/run`` took."""
    return {name: float(seconds) for name, seconds in _STEP.findall(text)}


def seconds_of_tests(text: str) -> dict[str, float]:
    """Read what each test took, with its set-up, of either form of a run."""
    seconds = defaultdict[str, float](float)
    if text.startswith("<?xml"):
        for case in ET.fromstring(text).iter("testcase"):
            # A file that was skipped whole has no class.
            file = (case.get("classname") or case.get("name") or "").replace(".", "/")
            seconds[f"{file}.py::{case.get('name')}"] += float(case.get("time", 0))
    else:
        for duration, test in _DURATION.findall(text):
            seconds[test] += float(duration)
    return seconds


def folder(test: str) -> str:
    """Name the folder right below ``tests``, or the file that is in none."""
    return test.removeprefix("tests/").split("/")[0].split("::")[0]


def summed(seconds: Mapping[str, float], names: Iterable[str]) -> list[tuple[str, float, int]]:
    """Add up by a name for each, the largest sum first, with how many it is of."""
    sums, counts = defaultdict[str, float](float), Counter[str]()
    for name, taken in zip(names, seconds.values(), strict=True):
        sums[name] += taken
        counts[name] += 1
    return sorted(((name, sums[name], counts[name]) for name in sums), key=lambda row: -row[1])


def _print_table(title: str, rows: Iterable[tuple[str, float, int]], whole: float) -> None:
    print(f"\n{'seconds':>9} {'share':>6} {'tests':>6}  {title}")
    for name, seconds, count in rows:
        print(f"{seconds:9.1f} {seconds / whole:6.1%} {count:6}  {name}")


def main(path: str, count: str = "100") -> None:
    """Print the tables of a run."""
    text = Path(path).read_text(encoding="utf-8")
    seconds, most = seconds_of_tests(text), int(count)
    whole = sum(seconds.values()) or 1.0
    for step, taken in step_seconds(text).items():
        print(f"{taken:9.0f} s  {step}")
    _print_table("folder", summed(seconds, map(folder, seconds)), whole)
    bare = [_PARAMETERS.sub("", test) for test in seconds]
    _print_table("test with all its parameters", summed(seconds, bare)[:most], whole)
    _print_table("test", summed(seconds, seconds)[:most], whole)


if __name__ == "__main__":
    main(*sys.argv[1:])
