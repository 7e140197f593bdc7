"""A loaded library as an executable: arrays in, arrays out, without copies.

Private, and why: ``torch._C._aoti`` is what loads such a library without a package around it, and
its runner takes 12 us a call where the packaged callable takes 36 (2.13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch._C import _aoti

from fusewire.backends.inductor.library import Library, as_file
from fusewire.backends.torch.exported import buffer_name
from fusewire.backends.torch.storage import entrance, exit_of, quiet_about_read_only
from fusewire.backends.torch.threads import run_with, threads_in
from fusewire.contract.backend import Artifact, Executable, Held, Into, Slot
from fusewire.errors import FormatError
from fusewire.ir.graph import Array


@final
class InductorExecutable(Executable):
    """Runs a compiled region; weights stay where they are."""

    def __init__(self, artifact: Artifact, weights: Mapping[str, Array]) -> None:
        quiet_about_read_only()
        library = Library.read(artifact.payload)
        with as_file(library.code) as path:
            runner = _aoti.AOTIModelContainerRunnerCpu(path, 1)
        slots = artifact.slots
        self._held = _lend(runner, library, slots, weights)
        self._runner, self._call = runner, runner.run
        self._threads = threads_in(artifact.launch)
        self._enters = [entrance(slot.dtype) for slot in slots if slot.role == "input"]
        copied: Any = artifact.launch["copied"]
        exits = [exit_of(slot.dtype) for slot in slots if slot.role == "output"]
        self._exits = list(zip(exits, map(bool, copied), strict=True))

    @property
    def is_reentrant(self) -> bool:
        """The runner has one call at a time; others wait inside it."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end; outputs are fresh, writable, and the caller's."""
        if self._threads is None:
            return self._run(inputs)
        return run_with(self._threads, self._run, inputs)

    def _run(self, inputs: Sequence[Any]) -> list[Held]:
        tensors = [enter(x) for enter, x in zip(self._enters, inputs, strict=True)]
        arrays: list[Held] = []
        for x, (leave, is_lent) in zip(self._call(tensors), self._exits, strict=True):
            if is_lent:
                x = x.clone(memory_format=torch.contiguous_format)
            elif not x.is_contiguous():
                x = x.contiguous()
            arrays.append(leave(x))
        return arrays


def _lend(
    runner: Any, library: Library, slots: Sequence[Slot], weights: Mapping[str, Array]
) -> dict[str, Any]:
    """Show the library its constants where they lie, and return them to be kept alive."""
    wanted = set(runner.get_constant_names_to_original_fqns().values())
    held = {name: torch.from_numpy(array.copy()) for name, array in library.constants.items()}
    for slot in slots:
        if slot.digest is not None:
            held[buffer_name(slot.digest)] = entrance(slot.dtype)(weights[slot.digest])
    if missing := wanted - held.keys():
        # The library would read from nowhere.
        raise FormatError(
            f"The library wants the constants {', '.join(sorted(missing))}, which it came without. "
            "Compile it again."
        )
    lent = {name: tensor for name, tensor in held.items() if name in wanted}
    if lent:
        runner.update_constant_buffer(lent, False, True, True)
    return lent
