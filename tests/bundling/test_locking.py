"""A lock file says what was chosen; `check` names the field that drifted, `diff` what changed."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fusewire as fw
from fusewire.bundling.locking import read_lock
from fusewire.cli import main
from fusewire.errors import FormatError
from fusewire.records.bundles import Bundle, NewSection, header_of, write_bundle
from fusewire.store.disk import Store
from fusewire.store.key import canonical_json
from fusewire.store.signing import AllowedSigner, Signer, allow


def invoke(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, [str(word) for word in words])


def compiled(name: str = "model", *words: object) -> None:
    done = invoke("compile", f"{name}.onnx", "-o", f"{name}.fw", "--lock", "fusewire.lock", *words)
    assert done.exit_code == 0, done.output


def drifted(*words: object) -> list[str]:
    done = invoke("check", *words, "--json")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["drifts"]
    assert done.exit_code == (1 if rows else 0)
    return [row["field"] for row in rows]


@pytest.fixture(autouse=True)
def _own_folders(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    for name, function in {"model": np.tanh, "other": np.exp}.items():
        fw.save_onnx(fw.trace(function, fw.Spec((3, 5), "float32")), f"{name}.onnx")


def test_lock_names_what_was_chosen() -> None:
    compiled("model", "--backend", "onnxruntime", "--level", "1", "--budget", "2")
    (stanza,) = read_lock("fusewire.lock").values()
    fields = stanza.fields
    assert stanza.name == "model"
    assert fields["engine"] == "onnxruntime"
    assert fields["version"] != "none"
    assert fields["inputs"] == "x float32[3, 5]"
    assert " to " in fields["time"]
    assert fields["error"].endswith("of the tolerance")
    assert all(len(fields[f"{x}-sha256"]) == 64 for x in ("model", "graph", "artifacts"))


def test_what_is_as_locked_passes() -> None:
    compiled("model", "--backend", "onnxruntime")
    compiled("other", "--backend", "reference", "--weights")
    assert list(read_lock("fusewire.lock")) == ["model", "other"]
    assert drifted() == []
    done = invoke("check")
    assert done.exit_code == 0
    assert "2 programs: all as locked." in done.stdout


def test_drift_fails_and_names_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled("model", "--backend", "onnxruntime")
    lock = Path("fusewire.lock")
    text = lock.read_text()
    lock.write_text(text.replace("engine: onnxruntime", "engine: reference"))
    assert drifted() == ["engine", "version"]
    done = invoke("check")
    assert done.exit_code == 1
    assert "engine" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    lock.write_text(text)
    Path("model.onnx").write_bytes(b"another model")
    assert drifted() == ["model-sha256"]
    invoke("compile", "other.onnx", "-o", "model.fw", "--backend", "onnxruntime")
    assert "program" in drifted()
    Path("model.fw").write_bytes(b"damaged")
    assert drifted() == ["bundle"]
    Path("model.fw").unlink()
    assert drifted() == ["bundle"]


def test_other_version_of_the_engine_is_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled("model", "--backend", "onnxruntime")
    lock = Path("fusewire.lock")
    version = read_lock(lock)["model"].fields["version"]
    lock.write_text(lock.read_text().replace(f"version: {version}", "version: 0.1"))
    assert set(drifted()) == {"version"}


def test_diff_shows_what_changed() -> None:
    compiled("model", "--backend", "onnxruntime")
    Path("before.lock").write_text(Path("fusewire.lock").read_text())
    assert invoke("diff", "before.lock", "fusewire.lock").exit_code == 0
    compiled("model", "--backend", "reference")
    compiled("other", "--backend", "reference")
    done = invoke("diff", "before.lock", "fusewire.lock", "--json")
    assert done.exit_code == 1
    rows = json.loads(done.stdout)["differences"]
    found = {(row["program"], row["field"]): (row["first"], row["second"]) for row in rows}
    assert found["model", "engine"] == ("onnxruntime", "reference")
    assert found["other", "program"] == ("absent", "other")
    text = invoke("diff", "before.lock", "fusewire.lock").stdout
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "text", ["x: 1", "[a]\n[a]", "[a]\nx: 1\nx: 2", "[a]\nnonsense", "\x00", "[a]\nX: 1"]
)
def test_file_that_is_no_lock_is_refused(text: str) -> None:
    Path("bad.lock").write_text(text)
    with pytest.raises(FormatError, match="line"):
        read_lock("bad.lock")


def test_names_of_a_model_cannot_steer_a_terminal_or_add_a_line() -> None:
    with fw.compile(np.tanh, backend="reference") as program:
        program(np.ones(3, np.float32))
        program.name = "evil\x1b[2J]\nengine: other"
        program.save("evil.fw")
    from fusewire.bundling.locking import lock_bundle

    (stanza,) = lock_bundle(Path("fusewire.lock"), Path("evil.fw"))
    assert "\x1b" not in stanza.text()
    assert read_lock("fusewire.lock")[stanza.name].fields["engine"] == "reference"


def test_lock_names_the_key_that_signed_and_no_other(tmp_path: Path) -> None:
    signer = Signer.generate()
    signer.write(tmp_path / "key.pem")
    compiled("model", "--backend", "reference", "--key", tmp_path / "key.pem")
    (stanza,) = read_lock("fusewire.lock").values()
    assert stanza.fields["signer"] == signer.id
    # The same whether the signer is believed here or not.
    allow(AllowedSigner(signer.id, "builder"))
    assert drifted() == []
    bundle = Bundle.open("model.fw")
    sections = [NewSection(x.name, x.key, bytes(bundle._view(x))) for x in bundle.head.sections]
    header = header_of(bundle.head.about, sections)
    envelope = json.loads(bundle.head.signature)
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()
    write_bundle(Path("model.fw"), header, canonical_json(envelope), sections)
    assert drifted() == ["bundle"]
