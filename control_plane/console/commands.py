"""The command of `tenora` that does the same as a form, or shows the same as a page. Not every one has a command."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

_CHANGES: Final[Mapping[str, str]] = {
    "create_api_key": "tenora keys create NAME",
    "rotate_api_key": "tenora keys rotate {key_id}",
    "revoke_api_key": "tenora keys revoke {key_id}",
    "put_alias": "tenora adapters promote {name} REVISION --alias {alias}",
    "delete_adapter": "tenora adapters delete {name}",
    "drain_replica": "tenora fleet drain {replica_id}",
    "undo_drain": "tenora fleet undrain {replica_id}",
    "lift_cordon": "tenora fleet uncordon {kind} {target}",
    "create_pool": "tenora pools create POOL --base-model BASE_MODEL",
    "pause_batches": "tenora batches pause --reason REASON",
    "resume_batches": "tenora batches resume",
}
"""By the name of the handler; capitals stand for what the form asks for."""

_READS: Final = (
    ("/api/v1/api-keys", "tenora keys list"),
    ("/api/v1/adapters", "tenora adapters list"),
    (r"/api/v1/adapters/([^/]+)", "tenora adapters show {}"),
    ("/api/v1/requests", "tenora requests"),
    ("/api/v1/usage", "tenora usage"),
    ("/api/v1/quota", "tenora quota"),
    ("/v1/batches", "tenora batches list"),
    ("/api/v1/invoices", "tenora invoices list"),
    ("/api/v1/admin/replicas", "tenora fleet list"),
    (r"/api/v1/admin/pools/([^/]+)", "tenora pools revisions {}"),
    (r"/api/v1/admin/pools/([^/]+)/decisions", "tenora fleet explain {}"),
    ("/api/v1/admin/base-models", "tenora base-models list"),
)


def of_change(operation: str, names: Mapping[str, str]) -> str:
    """The command of a form with its path's parameters; "" without one."""
    command = _CHANGES.get(operation, "")
    for name, value in names.items():
        command = command.replace(f"{{{name}}}", value)
    return command


def of_read(path: str) -> str:
    """The command that shows what this path of the API answers; "" without one."""
    for pattern, command in _READS:
        if (found := re.fullmatch(pattern, path)) is not None:
            return command.format(*map(unquote, found.groups()))
    return ""


def every() -> list[str]:
    """All commands, as they stand here."""
    return [*_CHANGES.values(), *(command for _, command in _READS)]
