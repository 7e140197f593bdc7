"""Columns in, columns out."""

from pathlib import Path

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import JobError
from fusewire.ray import Predictor
from tests.ray.tables import expected, save_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path)


@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 50])
def test_outputs_have_a_row_for_each_row(model: Path, batch_size: int | None) -> None:
    predictor = Predictor(model, batch_size=batch_size, backend="reference")
    x = np.random.default_rng(1).random((7, 4), np.float32)
    columns = predictor({"id": np.arange(7), "x": x})
    assert list(columns) == ["id", "output0", "output1"]
    np.testing.assert_array_equal(columns["id"], np.arange(7))
    np.testing.assert_allclose(columns["output1"], expected(x), rtol=1e-6)
    np.testing.assert_allclose(columns["output0"], expected(x).sum(axis=1), rtol=1e-5)


def test_columns_are_renamed_and_kept(model: Path) -> None:
    predictor = Predictor(
        model,
        inputs={"x": "features"},
        outputs={"output0": "score"},
        keep=["features"],
        backend="reference",
    )
    columns = predictor({"id": np.arange(2), "features": np.ones((2, 4), np.float32)})
    assert list(columns) == ["features", "score", "output1"]


def test_rows_that_are_objects_are_stacked(model: Path) -> None:
    rows = np.empty(2, object)
    rows[:] = [np.ones(4, np.float32), np.zeros(4, np.float32)]
    columns = Predictor(model, backend="reference")({"x": rows})
    np.testing.assert_allclose(columns["output1"][1], 0)


def test_flat_rows_get_the_shape_of_the_input(tmp_path: Path) -> None:
    path = tmp_path / "image.onnx"
    fw.save_onnx(lambda x: x.sum(axis=2), path, fw.Spec(("rows", 2, 3), "float32"))
    columns = Predictor(path, backend="reference")({"x": np.ones((5, 6), np.float32)})
    np.testing.assert_array_equal(columns["output"], np.full((5, 2), 3, np.float32))


def test_model_of_fixed_rows_is_called_as_often_as_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    fw.save_onnx(lambda x: x * 2, path, fw.Spec((2, 3), "float32"))
    predictor = Predictor(path, backend="reference")
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(predictor({"x": x})["output"], x * 2)
    assert predictor.batch_size == 2
    with pytest.raises(JobError, match="3 rows"):
        predictor({"x": x[:3]})


def test_values_are_cast_only_if_asked(model: Path) -> None:
    wide = {"x": np.ones((2, 4))}
    with pytest.raises(JobError, match="cast='same_kind'"):
        Predictor(model, backend="reference")(wide)
    Predictor(model, backend="reference", cast="same_kind")(wide)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"y": np.ones((2, 4), np.float32)}, "the table has the columns y"),
        ({"x": np.ones((2, 5), np.float32)}, r"has the shape \[5\]"),
        ({"x": np.ones((2, 2, 2), np.float32)}, r"has the shape \[2, 2\]"),
        ({"x": np.ones((2, 4), np.int64)}, "Convert the column|takes float32"),
        ({"x": np.ones((0, 4), np.float32)}, "no rows"),
        (
            {"x": np.ones((2, 4), np.float32), "output0": np.ones(2)},
            "has the name of a column that is kept",
        ),
    ],
)
def test_column_that_does_not_fit_is_refused(
    model: Path, batch: dict[str, object], words: str
) -> None:
    with pytest.raises(JobError, match=words):
        Predictor(model, backend="reference")(batch)


def test_rows_of_several_shapes_are_refused(model: Path) -> None:
    rows = np.empty(2, object)
    rows[:] = [np.ones(4, np.float32), np.ones(3, np.float32)]
    with pytest.raises(JobError, match="several shapes"):
        Predictor(model, backend="reference")({"x": rows})


def test_output_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sum.onnx"
    fw.save_onnx(lambda x: x.sum(), path, fw.Spec(("rows", 3), "float32"))
    with pytest.raises(JobError, match="a row for each row"):
        Predictor(path, backend="reference")({"x": np.ones((4, 3), np.float32)})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"inputs": {"z": "x"}}, "no input z"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_wrong_setting_is_refused(model: Path, settings: dict[str, object], words: str) -> None:
    with pytest.raises(JobError, match=words):
        Predictor(model, backend="reference", **settings)  # type: ignore[arg-type]  # wrong on purpose


def test_unknown_output_is_refused(model: Path) -> None:
    predictor = Predictor(model, outputs={"z": "score"}, backend="reference")
    with pytest.raises(JobError, match="no output z"):
        predictor({"x": np.ones((2, 4), np.float32)})
