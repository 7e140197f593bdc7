"""A model over batches of a table: the class that Ray Data's ``map_batches`` is given.

It takes and returns columns as arrays, and imports neither Ray nor pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, final

import numpy as np

from fusewire.compiler import Session
from fusewire.errors import JobError
from fusewire.options import OptionFields, Options
from fusewire.program.program import Program
from fusewire.ray.host import one_at_a_time
from fusewire.ray.rows import RowType, row_types
from fusewire.ray.shared_model import SharedModel
from fusewire.session.model_source import ModelSource

Columns = dict[str, Any]


@final
class Predictor:
    """Runs a model on batches of rows; each actor has one, with a program of its own.

    ``inputs`` and ``outputs`` map names of the model to columns where they differ. ``keep`` lists
    the columns that are returned too: by default those that no input reads. ``batch_size`` is the
    number of rows in a call: by default all rows of a batch, or as many as the model takes.

    >>> import numpy as np
    >>> import fusewire as fw
    >>> fw.save_onnx(lambda x: x * 2, "double.onnx", fw.Spec(("n", 2), "float32"))
    >>> double = Predictor("double.onnx", outputs={"output": "doubled"}, backend="reference")
    >>> double({"id": np.array([7]), "x": np.ones((1, 2), np.float32)})
    {'id': array([7]), 'doubled': array([[2., 2.]], dtype=float32)}
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | SharedModel,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        keep: Sequence[str] | None = None,
        batch_size: int | None = None,
        options: Options | None = None,
        **fields: Unpack[OptionFields],
    ) -> None:
        # A job waits for the engine that it will use a million times.
        chosen = Options.of(options or Options(start="measured"), fields)
        source = ModelSource(model.path() if isinstance(model, SharedModel) else model)
        self.rows = row_types(source.inputs())
        self.columns = _renamed("input", inputs or {}, list(self.rows))
        self._renames = dict(outputs or {})
        self._keep = keep
        self._casts = chosen.cast is not None
        self.batch_size = _checked(batch_size, next(iter(self.rows.values())))
        self.program = Session(chosen).program(source)
        self._output_names: tuple[str, ...] = ()

    def __call__(self, batch: Mapping[str, Any]) -> Columns:
        """Run on a batch of columns; returns those that are kept, and one per output."""
        arrays = self.arrays(batch)
        kept = {name: batch[name] for name in self.kept(list(batch))}
        outputs = self.run(arrays)
        if clash := sorted(kept.keys() & outputs.keys()):
            raise JobError(
                f"The output {clash[0]} has the name of a column that is kept. Rename it "
                "(outputs={...}, --output NAME=COLUMN), or do not keep the column."
            )
        return {**kept, **outputs}

    def kept(self, columns: Sequence[str]) -> list[str]:
        """List the columns that are returned as they are."""
        if self._keep is None:
            return [name for name in columns if name not in self.columns.values()]
        if missing := [name for name in self._keep if name not in columns]:
            raise _missing(f"keep the column {missing[0]!r}", columns)
        return list(self._keep)

    def arrays(self, batch: Mapping[str, Any]) -> list[Any]:
        """Return the inputs in order, as the model takes them."""
        arrays = []
        for name, row in self.rows.items():
            column = self.columns[name]
            if column not in batch:
                raise _missing(f"read the input {name} from the column {column!r}", list(batch))
            arrays.append(row.fit(column, batch[column], casts=self._casts))
        return arrays

    def run(self, arrays: Sequence[Any]) -> Columns:
        """Run on rows; returns the outputs by column."""
        count = len(arrays[0])
        if count == 0:
            raise JobError("A batch has no rows, so that the shapes of its outputs are unknown.")
        fixed = next(iter(self.rows.values())).count
        if fixed is not None and count % fixed:
            raise JobError(
                f"The model takes {fixed} rows in a call, and {count} rows are not a multiple of "
                "that. Export it with an open first dim, or give batches and row groups that are."
            )
        step = min(self.batch_size or count, count)
        if not self._output_names:
            self._settle([x[:step] for x in arrays])
        results = _in_steps(self.program, arrays, count, step, self._check)
        names = [self._renames.get(name, name) for name in self._output_names]
        return dict(zip(names, results, strict=True))

    def _settle(self, arrays: Sequence[Any]) -> None:
        """Choose the engine while no other process of this host measures."""
        with one_at_a_time():
            entry = self.program.entry(tuple(arrays))
            self.program(*arrays)
        if unknown := sorted(self._renames.keys() - set(entry.results.names)):
            known = ", ".join(entry.results.names)
            raise JobError(f"The model has no output {unknown[0]}. Outputs: {known}.")
        self._output_names = entry.results.names

    def _check(self, place: int, output: Any, rows: int) -> None:
        """Raise JobError if an output is not an array with a row for each row."""
        if not isinstance(output, np.ndarray) or output.ndim == 0 or len(output) != rows:
            shape = list(np.shape(output)) if isinstance(output, np.ndarray) else type(output)
            raise JobError(
                f"The output {self._output_names[place]} is {shape} for {rows} rows. A table can "
                "be mapped through a model whose outputs have a row for each row."
            )


def _in_steps(
    program: Program,
    arrays: Sequence[Any],
    count: int,
    step: int,
    check: Callable[[int, Any, int], None],
) -> list[Any]:
    """Run a program on ``step`` rows at a time; the last call has the rest."""
    inputs = tuple([x[:step] for x in arrays])
    # What runs such arrays is looked up once: a model of few rows is called many times.
    _, run = program.prepared(inputs)
    first = run(inputs)
    for place, output in enumerate(first):
        check(place, output, step)
    if step == count:
        return first
    results = [np.empty((count, *x.shape[1:]), x.dtype) for x in first]
    shapes = [x.shape for x in first]
    whole = count - count % step
    for at in range(0, whole, step):
        outputs = run(tuple([x[at : at + step] for x in arrays])) if at else first
        for place, output in enumerate(outputs):
            if output.shape != shapes[place]:
                check(place, output, step)
                _check_row_shape(output.shape, shapes[place])
            results[place][at : at + step] = output
    if whole < count:
        rest = _in_steps(program, [x[whole:] for x in arrays], count - whole, count - whole, check)
        for result, output in zip(results, rest, strict=True):
            _check_row_shape(output.shape, result.shape)
            result[whole:] = output
    return results


def _check_row_shape(shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if shape[1:] != first[1:]:
        raise JobError(
            f"A row of an output has the shape {list(first[1:])} in one call and {list(shape[1:])} "
            "in another. A column has rows of one shape."
        )


def _renamed(what: str, given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the column of each name; JobError for a name that the model does not have."""
    if unknown := sorted(given.keys() - set(names)):
        raise JobError(f"The model has no {what} {unknown[0]}. It has: {', '.join(names)}.")
    return {name: given.get(name, name) for name in names}


def _missing(what: str, columns: Sequence[str]) -> JobError:
    return JobError(f"Asked to {what}, and the table has the columns {', '.join(columns)}.")


def _checked(batch_size: int | None, row: RowType) -> int | None:
    """Return the rows of a call; JobError if the model takes another number."""
    if batch_size is not None and batch_size < 1:
        raise JobError(f"batch_size={batch_size}: give a number of rows, at least 1.")
    if row.count is not None and batch_size not in (None, row.count):
        raise JobError(
            f"batch_size={batch_size}: the model takes {row.count} rows in a call. Leave the batch "
            "size out."
        )
    return row.count if row.count is not None else batch_size
