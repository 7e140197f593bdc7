"""Every op is found by its name in the package of ops."""

import pkgutil

import fusewire.ops
from fusewire.ops.table import all_ops


def test_no_module_hides_an_op() -> None:
    # A module is set on its package once it is imported, before any op is looked up there.
    modules = {module.name for module in pkgutil.iter_modules(fusewire.ops.__path__)}
    assert not modules & all_ops().keys()
