"""Checks that neither tenant can see or call the other's adapter, and that a rate limit is enforced."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from openai import APIStatusError

from tenora.demo.calls import Answer, Call, Callers, error_body
from tenora.demo.control import ControlPlane
from tenora.demo.tenants import Tenant
from tenora.training.example_tasks import SIGN_OFF

_ABSENT: Final = "no-such-adapter"
_LIMIT_REACHES_GATEWAY_S: Final = 5
_SHOWN_HEADERS: Final = ("retry-after", "x-request-id", "x-should-retry")


@dataclass
class Isolation:
    """The number of checks, and a description of each violation."""

    checks: int = 0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Count one check."""
        self.checks += 1
        if not holds:
            self.violations.append(what)


async def check_isolation(callers: Callers, one: Tenant, other: Tenant, answers: Iterable[Answer]) -> Isolation:
    """Try each tenant against the other's adapter on both planes, and search other answers for the shop's sign-off."""
    isolation = Isolation()
    for mine, theirs in ((one, other), (other, one)):
        who, what = mine.name, theirs.adapter
        isolation.expect(what not in await callers.models(mine.id), f"{who} sees {what} in its model list")
        foreign, absent = await _refusal(callers, mine, what), await _refusal(callers, mine, _ABSENT)
        if foreign is None or absent is None:
            isolation.expect(False, f"{who} can call {what}")
        else:
            isolation.expect(foreign.status_code == 404, f"{who} calling {what} gets {foreign.status_code}")
            isolation.expect(
                _same(error_body(foreign), error_body(absent), what),
                f"{who} can distinguish {what} from an absent adapter",
            )
        listed = {adapter["name"] for adapter in mine.control.get("/api/v1/adapters")["data"]}
        isolation.expect(what not in listed, f"{who} lists {what}")
        read, read_absent = (
            mine.control.call("GET", f"/api/v1/adapters/{name}", refuse=False) for name in (what, _ABSENT)
        )
        isolation.expect(read.status_code == 404, f"{who} reading {what} gets {read.status_code}")
        problem = f"{who} can distinguish {what} from an absent adapter in the control plane"
        isolation.expect(_same(read.json(), read_absent.json(), what), problem)
    for answer in answers:
        if answer.call.tag != "voice":
            isolation.expect(SIGN_OFF not in answer.text, f"{answer.call.model} answered in another tenant's voice")
    return isolation


async def _refusal(callers: Callers, tenant: Tenant, model: str) -> APIStatusError | None:
    call = Call(
        tenant=tenant.id, model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=1, stream=False, tag=""
    )
    return await callers.refusal(call)


def _same(body: dict[str, Any], absent: dict[str, Any], name: str) -> bool:
    """Whether two refusals are identical except for the requested name and the request's id."""
    anonymous = [{**each, "request_id": None, "instance": None} for each in (body, absent)]
    return str(anonymous[0]).replace(name, "?") == str(anonymous[1]).replace(_ABSENT, "?")


async def run_into_quota(admin: ControlPlane, callers: Callers, tenant: Tenant, base_model: str) -> dict[str, Any]:
    """Limit the tenant to one request per minute, call until a refusal, and remove the limit; returns the refusal.

    Raises TimeoutError when no call is refused within ``_LIMIT_REACHES_GATEWAY_S`` seconds.
    """
    path = f"/api/v1/admin/tenants/{tenant.id}"
    admin.patch(path, {"limits": {"requests_per_minute": 1}})
    call = Call(
        tenant=tenant.id,
        model=base_model,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=1,
        stream=False,
        tag="",
    )
    try:
        async with asyncio.timeout(_LIMIT_REACHES_GATEWAY_S):
            refusal = None
            while refusal is None:
                refusal = await callers.refusal(call)
    finally:
        admin.patch(path, {"limits": {"requests_per_minute": None}})  # back to the plan's limit
    headers = {
        name: value
        for name, value in refusal.response.headers.items()
        if name in _SHOWN_HEADERS or name.startswith("x-ratelimit-")
    }
    error = error_body(refusal)["error"]
    return {"status": refusal.status_code, "code": error["code"], "message": error["message"], "headers": headers}
