"""What runs on GitHub: every action by digest, every tool of a release by hash, tests before it."""

import re
from collections.abc import Iterator

import pytest

from tests.environments import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PUBLISH = (ROOT / ".github" / "workflows" / "publish.yml").read_text()


def _used() -> Iterator[tuple[str, str]]:
    for path in WORKFLOWS:
        for line in path.read_text().splitlines():
            if "uses:" in line:
                yield path.name, line.split("uses:")[1].strip()


def _job(name: str) -> str:
    """Return the lines of a job."""
    jobs = re.split(r"^  (\w+):\n", PUBLISH.partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(jobs[1::2], jobs[2::2], strict=True))[name]


@pytest.mark.parametrize(("workflow", "action"), list(_used()))
def test_an_action_is_named_by_digest_with_its_version_beside(workflow: str, action: str) -> None:
    is_ours = action.startswith("./.github/workflows/") and (ROOT / action).is_file()
    assert is_ours or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), workflow


def test_an_action_has_one_digest_everywhere() -> None:
    digests = {(action.split("@")[0], action) for _, action in _used() if "@" in action}
    assert len(digests) == len({name for name, _ in digests})


def test_tools_of_a_release_are_installed_by_hash() -> None:
    installs = [line for line in PUBLISH.splitlines() if "pip install" in line]
    # The wheel itself is what `try` installs, as users do.
    installs = [line for line in installs if "dist/*.whl" not in line]
    assert installs
    for line in installs:
        assert "--require-hashes -r .github/publish-tools.txt" in line
    # An isolated build would install what builds it by name alone.
    assert "python -m build --no-isolation" in PUBLISH


def test_every_tool_of_a_release_has_a_version_and_a_hash() -> None:
    text = (ROOT / ".github" / "publish-tools.txt").read_text()
    pins = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert pins
    for pin in pins:
        assert re.match(r"[a-z0-9.-]+==[\w.]+ \\\n    --hash=sha256:[0-9a-f]{64}", pin), pin


def test_a_release_needs_the_tests_the_files_and_main() -> None:
    assert "needs: [tests, try]" in _job("publish")
    assert "uses: ./.github/workflows/tests.yml" in _job("tests")
    assert "needs: build" in _job("try")
    assert 'git merge-base --is-ancestor "$GITHUB_SHA" origin/main' in _job("build")


def test_only_the_upload_may_ask_for_an_identity() -> None:
    assert PUBLISH.count("id-token: write") == _job("publish").count("id-token: write") == 1
