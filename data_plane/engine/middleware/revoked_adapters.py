"""Which adapters the door serves no more. Whoever is about to bring one in asks here first, and again after each wait.

By adapter and not by engine name: what is revoked is an adapter with all its revisions, of which there may be hundreds.
"""

from core.adapter_names import adapter_of
from core.errors import NotFound


class AdapterRevoked(NotFound):
    """The adapter must not be served any more. To its callers it does not exist."""

    default_code = "adapter_revoked"


class RevokedAdapters:
    """A set of adapter ids that is replaced as a whole. One event loop."""

    def __init__(self) -> None:
        self.adapters: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        """Whether this engine name is refused."""
        return adapter_of(name) in self.adapters

    def check(self, name: str) -> None:
        """Raises ``AdapterRevoked`` for an engine name that is refused."""
        if name in self:
            raise AdapterRevoked(f"adapter {name} is not served any more")
