"""A small model and a table for it, as the tests of batch jobs need them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fusewire as fw
from fusewire.ray.columns import to_column


def save_model(folder: Path) -> Path:
    """Write a model of two outputs: of one number per row, and of a tensor per row."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) / 8

    def model(x: Any) -> Any:
        y = np.tanh(x @ weights)
        return y.sum(axis=1), y

    path = folder / "model.onnx"
    fw.save_onnx(model, path, fw.Spec(("rows", 4), "float32"))
    return path


def expected(x: Any) -> Any:
    """Compute the second output with NumPy."""
    return np.tanh(x @ (np.arange(12, dtype=np.float32).reshape(4, 3) / 8))


def write_rows(path: Path, count: int, group: int = 50, seed: int = 0) -> Any:
    """Write a table of so many rows; returns the array of its column x."""
    x = np.random.default_rng(seed).random((count, 4), np.float32)
    table = pa.table({"id": np.arange(count), "x": to_column("x", x)})
    pq.write_table(table, path, row_group_size=group)
    return x


def read_outputs(folder: Path) -> tuple[Any, Any]:
    """Return the ids of an output, and its tensors."""
    table = pq.read_table(folder)
    tensors = table.column("output1").combine_chunks().to_numpy_ndarray()
    return table.column("id").to_numpy(), tensors
