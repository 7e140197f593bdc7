"""Entries that were brought from a shared store go when their signers are not believed any more.

An entry says who signed it, in which generation, and when it expires. The store looks at the last;
the list of allowed signers decides about the others, here, once after it has changed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

from fusewire.errors import StoreError, note
from fusewire.store.blob import Provenance
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.store.secret import ALLOWED_SIGNERS, config_path

if TYPE_CHECKING:
    from fusewire.store.signing import AllowedSigners

# Where the store says for which list it was last looked through.
_MARK = Key.of("stamp", forgotten_for="allowed signers")
# The digest of the list that has nobody.
_NOBODY = hashlib.sha256().hexdigest().encode()


def forget_others(store: Store, signers: AllowedSigners) -> int:
    """Remove what was brought and is not believed any more; count it.

    Nothing is looked at unless the list has changed since the last time.
    """
    now = signers.digest.encode()
    if store.get(_MARK) == now:
        return 0
    least = {one.id: one.least_generation for one in signers.signers if not one.is_revoked}
    others = [
        entry.key
        for entry in store.entries()
        if entry.provenance is not None and not _is_believed(entry.provenance, least)
    ]
    for key in others:
        store.drop(key)
    store.put(_MARK, now)
    return len(others)


def _is_believed(provenance: Provenance, least: dict[str, int]) -> bool:
    return provenance.signer in least and provenance.generation >= least[provenance.signer]


def _has_list() -> bool:
    try:
        return (config_path() / ALLOWED_SIGNERS).exists()
    except OSError:
        # Whoever reads it says why that is not possible.
        return True


@cache
def believed(store: Store) -> Store:
    """Return the same store, without what is not believed any more; looks once in a process."""
    if store.get(_MARK) == _NOBODY and not _has_list():
        # Signatures are another 3 ms to import, and few machines have anything signed.
        return store
    from fusewire.store.signing import AllowedSigners

    try:
        signers = AllowedSigners.read()
    except (StoreError, OSError) as error:
        # It may have been changed to revoke somebody.
        note(f"What other machines have made is not used: {error}", is_warning=True)
        signers = AllowedSigners()
    forget_others(store, signers)
    return store
