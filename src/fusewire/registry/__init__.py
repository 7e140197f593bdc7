"""Find backends, their extensions, and frontends by entry point, ours like anybody's.

``REGISTRY`` is that of this process.
"""

from fusewire.registry.backends import REGISTRY, Registry
from fusewire.registry.met import BackendDevice, Met

__all__ = ["REGISTRY", "BackendDevice", "Met", "Registry"]

# The public functions are those of the one registry.
register, unregister, get = REGISTRY.register, REGISTRY.unregister, REGISTRY.get
list_backends, devices = REGISTRY.backends.names, REGISTRY.devices
device, best_device = REGISTRY.device, REGISTRY.best_device
set_default, close = REGISTRY.set_default, REGISTRY.close
