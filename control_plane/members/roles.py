"""What each role may do: the one table of the console's rights. A role has scopes, as an API key has, and the guards of
the API's routes ask for them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

from core.api_keys import ALL_SCOPES

TenantRole = Literal["owner", "developer", "billing", "viewer"]
PlatformRole = Literal["admin", "support"]
TENANT_ROLES: Final = get_args(TenantRole)
PLATFORM_ROLES: Final = get_args(PlatformRole)

SCOPES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "owner": frozenset(ALL_SCOPES) | {"members:read", "members:write", "logins:write"},
        "developer": frozenset(
            {
                "inference", "adapters:read", "adapters:write", "usage:read", "billing:read", "keys:write",
                "notifications:write", "logins:write",
            }
        ),
        "billing": frozenset({"usage:read", "billing:read", "billing:write"}),
        "viewer": frozenset({"adapters:read", "usage:read", "billing:read"}),
    }
)  # fmt: skip
"""By role at a tenant. ``members:*`` and ``logins:write`` belong to people alone: a key that could invite would outlive
its owner. A role that makes keys confirms sign-ins of commands, which get keys too. Of the platform's roles, ``admin``
may do everything on admin routes, and ``support`` may read.
"""
