"""Modules for the tests of calls, and PyTorch made ready once."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _ready_to_export() -> None:
    """Import here what torch.export needs: each forked process would import it by itself."""
    import torch
    from torch import nn

    torch.export.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), strict=False)
