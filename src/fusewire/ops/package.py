"""A package of ops outside the tree: its declarations, and what is wrong with one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast, final

from fusewire.dtypes import DType
from fusewire.errors import RegistryError
from fusewire.ops.declare import Family, Kind, Op, Rule, Tolerance, Trait
from fusewire.ops.outside import PAGE

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_ONNX = re.compile(r"[\w.-]+:\w+")
# Domains of ONNX that nobody else may say ops of.
_STANDARD = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "com.microsoft", "fusewire")
_TOLERANCES = ("exact", "codes", "ulps", "ranged", "linear", "spread", "scaled")
_OURS = ("name", "family", "rule", "version", "kind")


@final
class OpPackage:
    """The ops of one package. Its name is their namespace, and the name of its entry point.

    >>> package = OpPackage("my_ops")
    >>> package.ops
    {}
    """

    def __init__(self, name: str) -> None:
        if not _WORD.fullmatch(name):
            raise RegistryError(
                f"{name!r} cannot be the name of a package of ops: use lower-case letters, digits "
                f"and underscores, beginning with a letter. {PAGE}"
            )
        self.name = name
        self._family = Family(name)

    @property
    def ops(self) -> dict[str, Op[Any]]:
        """The declared ops by their full names."""
        return self._family.ops

    def declare(self, name: str, rule: Rule, *, version: int = 1, **given: Any) -> Op[Any]:
        """Declare an op; ``given`` are fields of ``Op``. RegistryError says what is wrong.

        A ``version`` above 1 is part of the name in graphs, ``my_ops.gelu2@2``: raise it when the
        meaning changes, so that no plan, verdict or kernel of the old one is used again.
        """
        full = f"{self.name}.{name}"
        if problem := _problem(name, rule, version, given):
            raise RegistryError(f"The op {full} is not declared as it must be: {problem} {PAGE}")
        # Kernels take it whole, so nothing is fused into it; its expansion is fused as ours are.
        given["kind"] = Kind.WHOLE
        full += f"@{version}" if version > 1 else ""
        if full in self.ops:
            raise RegistryError(
                f"The op {full} is declared twice. Rename one, or raise its version."
            )
        # The overloads of Family tell ops of one output from those of several.
        return self._family.declare(full, cast(Any, rule), version=version, **given)


def _problem(name: object, rule: object, version: object, given: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a declaration; None if nothing is."""
    if not isinstance(name, str) or not _WORD.fullmatch(name):
        return f"{name!r} is not a lower-case word."
    if not callable(rule):
        return f"its type rule is a {type(rule).__name__}, not a function."
    if type(version) is not int or not 1 <= version < 10_000:
        return f"its version is {version!r}, not a number from 1 on."
    known = {field.name for field in fields(Op)} - {*_OURS}
    if unknown := sorted(given.keys() - known):
        return f"{', '.join(unknown)} is not a field. Fields: {', '.join(sorted(known))}."
    return _field_problem(given) or _meaning_problem(rule, given)


def _field_problem(given: Mapping[str, Any]) -> str | None:
    doc, dtypes, tolerance = (given.get(key) for key in ("doc", "dtypes", "tolerance"))
    if not isinstance(doc, str) or not doc.endswith(".") or not doc[:1].isupper():
        return f"its doc is {doc!r}, not a sentence."
    if not isinstance(dtypes, tuple | list) or not all(isinstance(x, DType) for x in dtypes):
        return "dtypes is not a tuple of dtypes, such as fusewire.dtypes.FLOATS."
    if not dtypes:
        return "it takes no dtype."
    if not callable(given.get("samples")):
        return "samples is not a function that returns a list of samples."
    if tolerance is not None and not _is_tolerance(tolerance):
        kinds = ", ".join(_TOLERANCES)
        return f"its tolerance is {tolerance!r}, not ulps(4) or another of {kinds}."
    if wrong := [x for x in given.get("traits", ()) if not isinstance(x, Trait)]:
        return f"{wrong[0]!r} is not a Trait."
    onnx = given.get("onnx")
    if onnx is not None and not (isinstance(onnx, str) and _ONNX.fullmatch(onnx)):
        return f"onnx is {onnx!r}, not DOMAIN:OpName."
    if onnx is not None and onnx.partition(":")[0] in _STANDARD:
        return f"{onnx} is an op of ONNX's own domains, or of ours. Use a domain of your own."
    return None


def _is_tolerance(found: object) -> bool:
    return isinstance(found, Tolerance) and found.kind in _TOLERANCES and found.ulps >= 0


def _meaning_problem(rule: Callable[..., Any], given: Mapping[str, Any]) -> str | None:
    """Compare the parameters of the meaning with those of the type rule."""
    meanings = [key for key in ("reference", "expand") if given.get(key) is not None]
    if len(meanings) != 1:
        found = " and ".join(meanings) or "neither"
        return f"it needs a reference (NumPy) or an expand (other ops), found {found}."
    meaning = given[meanings[0]]
    if not callable(meaning):
        return f"{meanings[0]} is a {type(meaning).__name__}, not a function."
    parameters = inspect.signature(rule).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return "its type rule takes **attributes: name each."
    operands: list[Any] = [
        None for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    attrs = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(meaning).bind(*operands, **attrs)
    except TypeError as error:
        takes = f"{len(operands)} operands and the attributes {sorted(attrs) or 'none'}"
        return f"its type rule has {takes}, and its {meanings[0]} does not take these: {error}."
    return None
