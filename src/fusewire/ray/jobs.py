"""A batch job as data: its blocks, and what its output folder says about it.

The input is cut into blocks, each some row groups of one Parquet file. A block becomes one file of
the output, which appears whole, under the name of the block, once: whoever writes it again finds
it there. The manifest is written last and lists all blocks; a folder without it is unfinished.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fusewire.errors import JobError

# Names that begin so are not data to readers of Parquet folders.
JOB, MANIFEST, _TEMPORARY = "_job.json", "_manifest.json", ".writing-"
FORMAT = 1
# Metadata of an output file: the job and the block that it was written for.
_JOB_FIELD, _BLOCK_FIELD = b"fusewire.job", b"fusewire.block"
# The end of a Parquet file: the length of its footer in 4 bytes, and the magic number.
_TAIL = 8


@dataclass(frozen=True)
class Block:
    """Consecutive row groups of one input file, which become one output file."""

    index: int
    source: str
    row_groups: tuple[int, ...]
    rows: int

    @property
    def name(self) -> str:
        return f"block-{self.index:06d}.parquet"


@dataclass(frozen=True)
class WrittenBlock:
    """A block of the output as the manifest lists it."""

    index: int
    file: str
    rows: int
    bytes: int
    sha256: str


def parquet_files(source: str | os.PathLike[str]) -> list[Path]:
    """List a Parquet file, or those of a folder in order; JobError if there are none."""
    path = Path(source)
    found = [path] if path.is_file() else []
    if path.is_dir():
        names = (x for x in path.rglob("*.parquet") if not x.name.startswith((".", "_")))
        found = sorted(names)
    if not found:
        raise JobError(f"The input {path} is neither a Parquet file nor a folder of them.")
    return found


def cut_blocks(files: Sequence[Path], block_rows: int) -> list[Block]:
    """Cut files into blocks of about so many rows, at the borders of row groups."""
    blocks: list[Block] = []
    for path in files:
        about = opened(path).metadata
        groups, rows = list[int](), 0
        for group in range(about.num_row_groups):
            groups.append(group)
            rows += about.row_group(group).num_rows
            if rows >= block_rows or group == about.num_row_groups - 1:
                if rows:
                    blocks.append(Block(len(blocks), str(path.resolve()), tuple(groups), rows))
                groups, rows = [], 0
    if not blocks:
        raise JobError("The input has no rows.")
    return blocks


def opened(path: Path) -> Any:
    """Open a Parquet file; JobError if it is not one."""
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise JobError(f"The input {path} cannot be read as Parquet: {error}") from None


def identity_of(path: Path) -> dict[str, Any]:
    """Name the content of a Parquet file by its size, its time and the digest of its footer."""
    about = path.stat()
    with path.open("rb") as file:
        file.seek(max(about.st_size - _TAIL, 0))
        length = int.from_bytes(file.read(4), "little") + _TAIL
        file.seek(max(about.st_size - length, 0))
        footer = hashlib.sha256(file.read()).hexdigest()
    where = str(path.resolve())
    return {"path": where, "bytes": about.st_size, "time": about.st_mtime_ns, "footer": footer}


class OutputFolder:
    """The folder of one job: its description, its blocks, and at last its manifest."""

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        """Take a folder for a job; JobError if it holds anything else."""
        self.path = path
        self.job = {"format": FORMAT, **job}
        path.mkdir(parents=True, exist_ok=True)
        self._settings = self._read(JOB)
        if self._settings is None:
            if any(not x.name.startswith((".", "_")) for x in path.iterdir()):
                raise JobError(f"The folder {path} holds other files. Give an empty folder.")
        elif self._settings.get("job") != self.job:
            theirs = self._settings.get("job") or {}
            names = [name for name in self.job if self.job[name] != theirs.get(name)]
            raise JobError(
                f"The folder {path} holds the output of another job: {', '.join(names)} differ. "
                "Give another folder, or remove this one."
            )

    @property
    def batch_size(self) -> int | None:
        """The rows of a call, if an earlier run of this job has settled it."""
        settled: int | None = (self._settings or {}).get("batch_size")
        return settled

    @property
    def digest(self) -> str:
        """SHA-256 over all that decides the content of the output."""
        text = json.dumps(self._settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def begin(self, batch_size: int | None) -> None:
        """Write what the job is, so that a later run goes on with it."""
        if self._settings is None:
            self._settings = {"job": self.job, "batch_size": batch_size}
            self._write(JOB, self._settings)

    def written(self, block: Block) -> WrittenBlock | None:
        """Return a block that is in its place; None if it is not. JobError if it is another's."""
        return written_block(self.path, self.digest, block)

    @property
    def manifest(self) -> dict[str, Any] | None:
        """What the finished job says about itself."""
        return self._read(MANIFEST)

    def finish(self, blocks: Sequence[WrittenBlock], facts: Mapping[str, Any]) -> None:
        """Write the manifest, and remove what killed writers left."""
        with contextlib.suppress(FileNotFoundError):
            for path in self.path.glob(f"{_TEMPORARY}*"):
                path.unlink(missing_ok=True)
        ordered = sorted(blocks, key=lambda block: block.index)
        self._write(
            MANIFEST,
            {
                **self.job,
                "digest": self.digest,
                "batch_size": self.batch_size,
                "rows": sum(block.rows for block in ordered),
                "blocks": [asdict(block) for block in ordered],
                **facts,
            },
        )

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            held = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            held = None
        if not isinstance(held, dict):
            raise JobError(f"{self.path / name} is damaged. Remove the folder, and start again.")
        return held

    def _write(self, name: str, held: Mapping[str, Any]) -> None:
        with writing(self.path, name) as temporary:
            temporary.write_text(json.dumps(held, indent=1), encoding="utf-8")
            _sync(temporary)
            temporary.replace(self.path / name)


def written_block(folder: Path, digest: str, block: Block) -> WrittenBlock | None:
    """Return a block of a job that is in its place; None if there is none."""
    path = folder / block.name
    try:
        about = pq.read_metadata(path)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        raise JobError(f"{path} is damaged: {error} Remove it, and start the job again.") from None
    fields = about.metadata or {}
    mine = digest.encode(), str(block.index).encode()
    if (fields.get(_JOB_FIELD), fields.get(_BLOCK_FIELD)) != mine or about.num_rows != block.rows:
        raise JobError(f"{path} was written by another job. Give an empty folder.")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return WrittenBlock(block.index, block.name, block.rows, path.stat().st_size, sha256)


def mark(schema: Any, digest: str, block: Block) -> Any:
    """Return a schema that says which block of which job a file holds."""
    fields = {_JOB_FIELD: digest.encode(), _BLOCK_FIELD: str(block.index).encode()}
    return schema.with_metadata({**(schema.metadata or {}), **fields})


@contextlib.contextmanager
def writing(folder: Path, name: str) -> Iterator[Path]:
    """Give a temporary file for a name; it is removed if it is still there at the end."""
    path = folder / f"{_TEMPORARY}{name}-{os.getpid()}-{os.urandom(6).hex()}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def commit(temporary: Path, path: Path) -> None:
    """Give a finished file its name, unless another writer was first: then theirs stays."""
    _sync(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:
        # A disk without hard links: the last of two writers wins, with the same rows.
        temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        # Some network disks cannot.
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def verify(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Check a finished output against its manifest, and return that; JobError if they differ."""
    path = Path(folder)
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise JobError(f"{path} has no manifest: its job has not finished.") from None
    listed = {block["file"] for block in manifest["blocks"]}
    if extra := sorted({x.name for x in path.glob("*.parquet")} - listed):
        raise JobError(f"{path / extra[0]} is not in the manifest.")
    for block in manifest["blocks"]:
        with (path / block["file"]).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != block["sha256"]:
                raise JobError(f"{path / block['file']} was changed since the job finished.")
    return manifest
