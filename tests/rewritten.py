"""Tests that write a module, import it, and write it again."""

import sys

import pytest


def without_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no bytecode, which a file of the same size and second would be run as."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
