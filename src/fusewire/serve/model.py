"""A model in service: its program in several replicas, its batcher, and its replacement on reload.

A loaded model is one version of the file. While the next one is compiled, the current one answers;
then new requests go to the new one, and the old one ends when its last request is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fusewire.bundling.opening import open_copies
from fusewire.choosing.batch_size import measured_batch_size
from fusewire.compiler import compile as compile_program
from fusewire.dtypes import dtype
from fusewire.errors import FusewireError, OptionsError
from fusewire.ir.graph import Array
from fusewire.options import Options
from fusewire.planning.rows import RowProof, prove_rows
from fusewire.program.program import Program, ProgramPort
from fusewire.records.bundles import ENDING
from fusewire.serve.batcher import Batcher, BatchPolicy
from fusewire.serve.binding import Binder, BoundForm
from fusewire.serve.limits import ServeLimits
from fusewire.serve.metrics import ModelCounts
from fusewire.serve.replicas import Replicas, called

# Inode, time of the last change, and size.
Stamp: TypeAlias = tuple[int, int, int]
# A comparison of engines may take this much longer than its budget.
_SETTLING_SECONDS = 10.0


@dataclass(frozen=True)
class ModelConfig:
    """What to serve, and how: ``rows=None`` measures which batches are worth waiting for.

    ``sizes`` are shapes of inputs to prepare for, by name, with any number of rows.
    """

    name: str
    source: Path
    options: Options
    replicas: int = 1
    rows: int | None = None
    most_rows: int = 32
    delay: float = 0.002
    pads: bool = False
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    # Of a bundle: it must be signed as a release of this name.
    release: str | None = None


class LoadedModel:
    """One version of a model file, compiled and ready."""

    def __init__(self, config: ModelConfig, limits: ServeLimits, counts: ModelCounts) -> None:
        """Compile; takes long, so not on the event loop."""
        self.config = config
        # Given when it goes into service.
        self.version = "0"
        self.stamp = stamp_of(config.source)
        self._programs = opened(config)
        try:
            self._prepare(limits, counts)
        except BaseException:
            for program in self._programs:
                program.close()
            raise

    def _prepare(self, limits: ServeLimits, counts: ModelCounts) -> None:
        config, program = self.config, self._programs[0]
        self.proof: RowProof = prove_rows(program.graph)
        self.inputs: tuple[ProgramPort, ...] = program.inputs
        self.outputs: tuple[ProgramPort, ...] = program.outputs
        self.binder = Binder(self.inputs, self.proof, limits)
        # Requests with the same first bytes mean the same: see rest.py.
        self.headers: dict[bytes, Any] = {}
        self.answers: dict[Any, bytes] = {}
        policy = BatchPolicy(self._rows(), config.delay, config.pads)
        self.replicas = Replicas(self._programs, self.proof, policy.pads and self.proof.is_proven)
        self.batcher = Batcher(self.replicas, policy, limits.queue, counts)

    def _rows(self) -> int:
        """Warm all replicas up, and decide how many rows a batch has at most."""
        config = self.config
        example = generated_inputs(self.inputs, dict(config.sizes), self.proof, 1)
        if example is not None:
            for program in self._programs:
                # A child may answer the first call, and the second then loads the engine.
                for _ in range(3):
                    called(program, example)
                program.wait(config.options.budget_seconds + _SETTLING_SECONDS)
        if not self.proof.is_proven:
            return 1
        if config.rows is not None:
            return config.rows
        return config.most_rows if example is None else self._measured_rows(config.most_rows)

    def _measured_rows(self, most: int) -> int:
        """Return the fewest rows that are about as fast as any."""
        seed, inputs = self.config.options.seed, dict[int, list[Array]]()

        def call(rows: int) -> None:
            if rows not in inputs:
                sizes = dict(self.config.sizes)
                arrays = generated_inputs(self.inputs, sizes, self.proof, rows, seed)
                assert arrays is not None, "the example had all sizes"
                inputs[rows] = arrays
            called(self._programs[0], inputs[rows])

        return measured_batch_size(call, most)[0]

    def submit(
        self, arrays: list[Array], form: BoundForm, deadline: float
    ) -> asyncio.Future[list[Array]]:
        """Have a request answered that was bound to this version's inputs."""
        key = self.binder.batch_key(form, arrays)
        return self.batcher.submit(arrays, key, form.rows, deadline)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs, in their order."""
        return tuple(port.name for port in self.outputs)

    async def drain(self) -> None:
        """Wait for the last answer, and end all processes."""
        while self.batcher.is_busy:
            await asyncio.sleep(0.02)
        await asyncio.get_running_loop().run_in_executor(None, self.replicas.close)


class ServedModel:
    """A name under which requests find the version that is loaded."""

    def __init__(self, config: ModelConfig, limits: ServeLimits) -> None:
        self.config = config
        self.counts = ModelCounts()
        self.version = 0
        self.error: str | None = None
        # Whether a thread compiles, which nothing can stop.
        self.is_loading = False
        # Of the file that could not be loaded: it is tried again once it changes.
        self._failed: Stamp | None = None
        self._limits = limits
        self._current: LoadedModel | None = None
        self._loading = asyncio.Lock()
        self._draining: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered."""
        return self._current is not None

    @property
    def current(self) -> LoadedModel | None:
        """The version that new requests go to."""
        return self._current

    async def load(self) -> LoadedModel:
        """Compile the file as it is now, and have new requests go to it.

        Nothing is compiled again for a file that did not change: anybody may ask for it.
        """
        async with self._loading:
            loop = asyncio.get_running_loop()
            stamp = stamp_of(self.config.source)
            if self._current is not None and self._current.stamp == stamp:
                return self._current
            try:
                fresh = await loop.run_in_executor(None, self._loaded_model)
            except FusewireError as error:
                self.error, self._failed = str(error), stamp
                raise
            self.error = self._failed = None
            self.version += 1
            fresh.version = str(self.version)
            old, self._current = self._current, fresh
            if old is not None:
                self._retire(old)
            return fresh

    def _loaded_model(self) -> LoadedModel:
        self.is_loading = True
        try:
            return LoadedModel(self.config, self._limits, self.counts)
        finally:
            self.is_loading = False

    def _retire(self, old: LoadedModel) -> None:
        task = asyncio.get_running_loop().create_task(old.drain())
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    def is_stale(self) -> bool:
        """Tell whether the file is another one than the one in service, and not known to fail."""
        if self._current is None:
            return False
        return stamp_of(self.config.source) not in (None, self._current.stamp, self._failed)

    async def close(self) -> None:
        """Answer what waits, and end all processes."""
        if self._current is not None:
            self._retire(self._current)
            self._current = None
        await asyncio.gather(*self._draining)


def opened(config: ModelConfig) -> list[Program]:
    """Compile a model file, or open a bundle, for each replica."""
    if config.source.suffix == ENDING:
        return open_copies(config.source, config.options, config.replicas, config.release)
    path, options = str(config.source), config.options
    return [compile_program(path, options=options) for _ in range(config.replicas)]


def stamp_of(source: Path) -> Stamp | None:
    """Identify the content of a file, as far as its metadata tells; None if it is not there."""
    try:
        found = source.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def generated_inputs(
    ports: Sequence[ProgramPort],
    sizes: dict[str, tuple[int, ...]],
    proof: RowProof,
    rows: int,
    seed: int = 0,
) -> list[Array] | None:
    """Make inputs with so many rows; None if a size is not known."""
    if unknown := sorted(set(sizes) - {port.name for port in ports}):
        names = ", ".join(port.name for port in ports)
        raise OptionsError(f"There is no input {unknown[0]!r}. The inputs are {names}.")
    rng = np.random.default_rng(seed)
    arrays: list[Array] = []
    for place, port in enumerate(ports):
        shape = list(sizes.get(port.name, port.shape))
        axis = proof.inputs[place] if proof.is_proven else None
        if axis is not None:
            shape[axis] = rows
        if not all(isinstance(dim, int) for dim in shape) or port.dtype == "string":
            return None
        whole = [int(dim) for dim in shape]
        numbers = rng.uniform(0, 1, whole)
        arrays.append(np.asarray(numbers).astype(dtype(port.dtype).numpy))
    return arrays
