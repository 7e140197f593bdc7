"""Fused optimizers write to parameters without counting it; programs look at these counts."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any, Protocol


class Watcher(Protocol):
    """Watches parameters."""

    def watched(self) -> Collection[int]:
        """Return the ids of the parameters."""
        ...


_WATCHERS: weakref.WeakSet[Any] = weakref.WeakSet()
_HOOKS: list[Any] = []


def count_fused_steps(watcher: Watcher) -> None:
    """Count what fused optimizers write to parameters, while the one who watches them is alive."""
    if not _HOOKS:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _HOOKS.append(register_optimizer_step_post_hook(_after_step))
    _WATCHERS.add(watcher)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    from torch.autograd.graph import increment_version

    groups = [group["params"] for group in optimizer.param_groups if group.get("fused")]
    if groups:
        watched = set().union(*(watcher.watched() for watcher in list(_WATCHERS)))
        increment_version([x for group in groups for x in group if id(x) in watched])
