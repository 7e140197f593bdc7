"""A Ray session for the tests of this folder; they are skipped where Ray is not installed."""

import contextlib
import importlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("pyarrow") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Start Ray on two processors, on the loopback, with folders of its own."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'fusewire[ray]'")
    # Without it, Ray 2.60 replaces the loopback by another address of the machine.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = importlib.import_module("ray")
    # A path of a socket has at most 107 characters, so pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="fw-ray-", ignore_cleanup_errors=True) as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                object_store_memory=200 * 2**20,
                _temp_dir=folder,
            )
        yield ray
        with contextlib.suppress(Exception):
            ray.shutdown()
