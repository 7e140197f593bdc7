"""The table of core ops covers what PyTorch calls its core, and says why of the rest."""

from pathlib import Path

import torch

from fusewire.frontends.torch.aten.table import NOT_CONVERTED, aten_rows

LIST = Path(__file__).parents[3] / "docs" / "core_aten.txt"


def _core() -> set[str]:
    """Name the ops that have PyTorch's tag."""
    names = torch._C._dispatch_get_all_op_names()
    found = set()
    for full in (name for name in names if name.startswith("aten::")):
        name, _, overload = full.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, name), overload or "default")
        if torch.Tag.core in op.tags:
            found.add(f"{name}.{overload or 'default'}")
    return found


def test_list_of_core_ops_is_that_of_pytorch() -> None:
    listed = {line for line in LIST.read_text().splitlines() if not line.startswith("#")}
    assert listed == _core()


def test_core_op_is_converted_or_has_a_reason() -> None:
    rows = aten_rows().keys()
    assert _core() <= rows | NOT_CONVERTED.keys()
    assert not rows & NOT_CONVERTED.keys()
