"""Map the rows of Parquet files through a model, block by block.

``map_block`` is the whole work on one block. This process calls it in a loop, or Ray Data's actors
do; in both cases a block is done when its file has its name, and doing it again changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

import pyarrow as pa
import pyarrow.parquet as pq

from fusewire.choosing.batch_size import MOST_ROWS, measured_batch_size
from fusewire.compiler import Session
from fusewire.errors import FusewireError, JobError, SizesNeededError
from fusewire.options import Options
from fusewire.planning.rows import prove_rows
from fusewire.ray.cluster import connected, processors
from fusewire.ray.columns import to_array, to_column
from fusewire.ray.host import one_at_a_time
from fusewire.ray.jobs import (
    Block,
    OutputFolder,
    WrittenBlock,
    commit,
    cut_blocks,
    identity_of,
    mark,
    opened,
    parquet_files,
    writing,
    written_block,
)
from fusewire.ray.predictor import Predictor
from fusewire.ray.shared_model import SharedModel
from fusewire.session.model_source import ModelSource

# Rows that are read, run and written at a time, so that a block need not fit in memory.
_READ_ROWS = 8192


@dataclass(frozen=True)
class MapSettings:
    """What a block is mapped with; the same for all blocks of a job."""

    model: SharedModel
    options: Options = field(default_factory=Options)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] | None = None
    batch_size: int | None = None
    output: str = ""
    digest: str = ""

    def predictor(self) -> Predictor:
        """Make the program of these settings."""
        return Predictor(
            self.model,
            inputs=self.inputs,
            outputs=self.outputs,
            keep=self.keep,
            batch_size=self.batch_size,
            options=self.options,
        )


@dataclass(frozen=True)
class Mapped:
    """What a job did: all rows and blocks, and how many were done by this run."""

    rows: int
    blocks: int
    new_rows: int
    new_blocks: int
    batch_size: int | None
    seconds: float
    output: str


def map_parquet(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    keep: Sequence[str] | None = None,
    batch_size: int | None = None,
    block_rows: int = 65_536,
    ray: str | None = None,
    workers: int | None = None,
    options: Options | None = None,
) -> Mapped:
    """Map Parquet files through a model into a folder of Parquet files.

    ``ray`` is the address of a cluster, and ``workers`` the number of its actors; without it, this
    process does the work. A job that was interrupted goes on where it was. Raises JobError for
    columns that do not fit and for a folder that holds anything else.
    """
    settings = MapSettings(
        SharedModel.of(model),
        options or Options(start="measured"),
        dict(inputs or {}),
        dict(outputs or {}),
        None if keep is None else tuple(keep),
        batch_size,
        str(Path(output).resolve()),
    )
    return _run_job(settings, parquet_files(source), block_rows, ray, workers)


def _run_job(
    settings: MapSettings,
    files: Sequence[Path],
    block_rows: int,
    ray: str | None,
    workers: int | None,
) -> Mapped:
    """Map the blocks that the folder lacks, and write the manifest."""
    start = time.monotonic()
    blocks = cut_blocks(files, block_rows)
    folder = OutputFolder(Path(settings.output), _description(settings, files, block_rows))
    done: list[WrittenBlock] = []
    if folder.manifest is None:
        if ray is None:
            done = _map_here(settings, blocks, folder)
        else:
            done = _map_on_ray(ray, workers, settings, blocks, folder)
        written = [_found(folder, block) for block in blocks]
        folder.finish(written, {"seconds": round(time.monotonic() - start, 3)})
    new_rows = sum(block.rows for block in done)
    rows = sum(block.rows for block in blocks)
    seconds = time.monotonic() - start
    return Mapped(
        rows, len(blocks), new_rows, len(done), folder.batch_size, seconds, str(folder.path)
    )


def _found(folder: OutputFolder, block: Block) -> WrittenBlock:
    written = folder.written(block)
    if written is None:
        raise JobError(
            f"{folder.path / block.name} is not here, though a worker has written it. Give a "
            "folder that all hosts share; if it was removed, start the job again."
        )
    return written


def _description(settings: MapSettings, files: Sequence[Path], block_rows: int) -> dict[str, Any]:
    """Say what decides the rows of the output, as plain data."""
    options = settings.options
    return {
        "model": settings.model.digest,
        "backend": ",".join(options.backend_names) or str(options.backend),
        "device": options.device,
        "cast": options.cast,
        "inputs": dict(settings.inputs),
        "outputs": dict(settings.outputs),
        "keep": None if settings.keep is None else list(settings.keep),
        "block_rows": block_rows,
        "files": [identity_of(path) for path in files],
    }


def _map_here(
    settings: MapSettings, blocks: Sequence[Block], folder: OutputFolder
) -> list[WrittenBlock]:
    """Map the blocks that are missing, in this process."""
    predictor: Predictor | None = None
    if (settled := folder.batch_size) is None:
        settled, predictor = settle(settings, blocks[0])
    folder.begin(settled)
    settings = replace(settings, batch_size=settled, digest=folder.digest)
    missing = [block for block in blocks if folder.written(block) is None]
    if missing and predictor is None:
        predictor = settings.predictor()
    assert predictor is not None or not missing
    return [map_block(settings, predictor, block) for block in missing if predictor is not None]


def settle(settings: MapSettings, block: Block) -> tuple[int, Predictor]:
    """Make the program, and choose the rows of a call on the first rows of the input."""
    predictor = settings.predictor()
    if predictor.batch_size is None and mixes_rows(settings) is not None:
        # Rows that influence each other mean what they mean one by one.
        predictor.batch_size = 1
    if predictor.batch_size is None:
        table = next(_read(block, None, min(MOST_ROWS, block.rows)))
        arrays = predictor.arrays(_inputs(predictor, table))

        def call(size: int) -> None:
            predictor.run([x[:size] for x in arrays])

        # The first call chooses an engine, which waits for its own turn.
        call(min(len(arrays[0]), 64))
        with one_at_a_time():
            predictor.batch_size, _ = measured_batch_size(call, len(arrays[0]))
    return predictor.batch_size, predictor


def mixes_rows(settings: MapSettings) -> str | None:
    """Say why rows of a batch may influence each other; None if the graph proves otherwise."""
    try:
        graph = ModelSource(settings.model.path()).read().graph
    except SizesNeededError as error:
        return str(error)
    return prove_rows(Session(settings.options).rewrite(graph)).refusal


class BatchModel(Protocol):
    """What maps the rows of a block: a Predictor, or what it is compared with."""

    @property
    def columns(self) -> Mapping[str, str]: ...

    @property
    def batch_size(self) -> int | None: ...

    def kept(self, columns: Sequence[str]) -> list[str]: ...

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]: ...


def map_block(settings: MapSettings, predictor: BatchModel, block: Block) -> WrittenBlock:
    """Map one block, unless its file is there, and return what the manifest says about it."""
    folder = Path(settings.output)
    if (written := written_block(folder, settings.digest, block)) is not None:
        return written
    step = predictor.batch_size or 1
    rows_at_a_time = max(_READ_ROWS // step, 1) * step
    with writing(folder, block.name) as temporary:
        writer = None
        try:
            for table in _read(block, predictor, rows_at_a_time):
                mapped = _mapped(predictor, table)
                if writer is None:
                    schema = mark(mapped.schema, settings.digest, block)
                    writer = pq.ParquetWriter(temporary, schema)
                writer.write_batch(mapped)
        finally:
            if writer is not None:
                writer.close()
        commit(temporary, folder / block.name)
    written = written_block(folder, settings.digest, block)
    if written is None:
        raise JobError(f"{folder / block.name} was removed while the job ran.")
    return written


def _read(block: Block, predictor: BatchModel | None, rows: int) -> Iterator[Any]:
    """Read the columns that a predictor needs, so many rows at a time."""
    file = opened(Path(block.source))
    columns = None
    if predictor is not None:
        names = file.schema_arrow.names
        columns = list(dict.fromkeys([*predictor.columns.values(), *predictor.kept(names)]))
        columns = [name for name in columns if name in names]
    try:
        groups = list(block.row_groups)
        yield from file.iter_batches(rows, row_groups=groups, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise JobError(f"The input {block.source} cannot be read: {error}") from None


def _inputs(predictor: BatchModel, table: Any) -> dict[str, Any]:
    """Return the columns that inputs read, as arrays, and the others as they are."""
    read = set(predictor.columns.values())
    names = table.schema.names
    return {x: to_array(x, table.column(x)) if x in read else table.column(x) for x in names}


def _mapped(predictor: BatchModel, table: Any) -> Any:
    """Map some rows; columns that are kept stay as they are, with their types."""
    columns = predictor(_inputs(predictor, table))
    kept = set(predictor.kept(table.schema.names))
    arrays = [table.column(x) if x in kept else to_column(x, y) for x, y in columns.items()]
    fields = [
        table.schema.field(name) if name in kept else pa.field(name, array.type, nullable=False)
        for name, array in zip(columns, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@final
class BlockMapper:
    """Maps blocks in an actor of Ray Data; has one program."""

    def __init__(
        self,
        settings: MapSettings,
        blocks: Mapping[int, Block],
        make: Callable[[MapSettings], BatchModel] = MapSettings.predictor,
    ) -> None:
        self._settings = settings
        self._blocks = blocks
        self._make = partial(make, settings)
        self._predictor: BatchModel | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        """Map the blocks of these indices; an error of ours is an answer, which has its type."""
        told: list[dict[str, Any]] = []
        for index in batch["block"]:
            try:
                self._predictor = self._predictor or self._make()
                block, began = self._blocks[int(index)], time.time()
                done = asdict(map_block(self._settings, self._predictor, block))
                about = {"began": began, "ended": time.time(), "pid": os.getpid()}
                told.append({"done": done, **about})
            except FusewireError as error:
                told.append({"refused": f"{error}"})
        return {"said": [json.dumps(row) for row in told]}


def _map_on_ray(
    address: str,
    workers: int | None,
    settings: MapSettings,
    blocks: Sequence[Block],
    folder: OutputFolder,
) -> list[WrittenBlock]:
    """Map the blocks that are missing, in actors of a cluster; each uses its own processors."""
    with connected(address) as ray:
        threads = settings.options.threads or 1
        options = replace(settings.options, threads=threads)
        model = SharedModel.of(settings.model.source, ray.put)
        settings = replace(settings, options=options, model=model)
        if (settled := folder.batch_size) is None:
            settled = _answer(
                ray.get(ray.remote(num_cpus=threads)(_settled).remote(settings, blocks[0]))
            )
        folder.begin(settled)
        settings = replace(settings, batch_size=settled, digest=folder.digest)
        missing = {block.index: block for block in blocks if folder.written(block) is None}
        if not missing:
            return []
        actors = min(workers or max(processors(ray) // threads, 1), len(missing))
        said = in_actors(ray, BlockMapper, (settings, missing), list(missing), actors, threads)
        return [WrittenBlock(**_answer(json.loads(row))) for row in said]


def in_actors(
    ray: Any, mapper: type, arguments: tuple[Any, ...], blocks: list[int], actors: int, cpus: int
) -> Iterator[str]:
    """Have Ray Data's actors map blocks; yields what they say about each."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    # It reports every start and end of a pipeline.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    items = [{"block": index} for index in blocks]
    dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        mapper,
        fn_constructor_args=arguments,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=cpus,
    )
    for row in dataset.iter_rows():
        yield row["said"]


def _settled(settings: MapSettings, block: Block) -> dict[str, Any]:
    """Choose the rows of a call on a worker; returns an answer."""
    try:
        return {"done": settle(settings, block)[0]}
    except FusewireError as error:
        return {"refused": str(error)}


def _answer(told: Mapping[str, Any]) -> Any:
    if "refused" in told:
        raise JobError(told["refused"])
    return told["done"]
