"""`fusewire compile -o model.fw` writes a bundle that `fw.open` opens."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fusewire as fw
from fusewire.cli import main
from fusewire.store.disk import Store


def invoke(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, [str(word) for word in words])


@pytest.fixture(autouse=True)
def _own_folders(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    fw.save_onnx(fw.trace(np.tanh, fw.Spec((3, 5), "float32")), "model.onnx")


def test_bundle_is_written_signed_and_opened() -> None:
    assert invoke("store", "keygen", "-o", "key.pem", "--allow").exit_code == 0
    words = ("compile", "model.onnx", "--backend", "onnxruntime", "-o", "model.fw")
    report = json.loads(invoke(*words, "--weights", "--key", "key.pem", "--json").stdout)
    assert report["backend"] == "onnxruntime"
    assert report["signer"] != "nobody"
    x = np.ones((3, 5), np.float32)
    np.testing.assert_allclose(fw.open("model.fw")(x), np.tanh(x), rtol=1e-6)
    text = invoke(*words)
    assert text.exit_code == 0, text.output
    assert "nobody" in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "folder"), "ends in .fw"),
        (("-o", "out", "--target", "cuda:sm_90", "--weights"), "are for bundles"),
        (("-o", "out", "--target", "cuda:sm_90", "--level", "1"), "--level is 0 or 3"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: tuple[str, ...], said: str) -> None:
    done = invoke("compile", "model.onnx", *words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_bundle_that_cannot_be_written_is_an_error() -> None:
    words = ("compile", "model.onnx", "--backend", "reference", "-o", "none/model.fw")
    done = invoke(*words)
    assert done.exit_code == 1
    assert "cannot be written" in done.output
