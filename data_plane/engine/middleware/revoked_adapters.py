"""The set of revoked adapters, which the middleware refuses. Every load checks it first, and again after each wait.

The set holds adapter ids, not engine names: a revocation covers an adapter with all its revisions, maybe hundreds.
"""

from core.adapter_names import adapter_of
from core.errors import NotFound


class AdapterRevoked(NotFound):
    """The adapter was revoked. To its callers it does not exist."""

    default_code = "adapter_revoked"


class RevokedAdapters:
    """A set of adapter ids that is replaced as a whole. Used on one event loop."""

    def __init__(self) -> None:
        self.adapters: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        """Whether the adapter of this engine name is revoked."""
        return adapter_of(name) in self.adapters

    def require_not_revoked(self, name: str) -> None:
        """Raise ``AdapterRevoked`` if the adapter of this engine name is revoked."""
        if name in self:
            raise AdapterRevoked(f"adapter {name} was revoked")
