"""What the demo proves beside answers: neither tenant can see or call the other's adapter, and a limit holds."""

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
    """How many things were checked, and which of them were wrong."""

    checks: int = 0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Count one check."""
        self.checks += 1
        if not holds:
            self.violations.append(what)


async def check_isolation(callers: Callers, one: Tenant, other: Tenant, answers: Iterable[Answer]) -> Isolation:
    """Each tenant against the other's adapter on both planes, and every base-model answer against the other's voice."""
    seen = Isolation()
    for mine, theirs in ((one, other), (other, one)):
        who, what = mine.name, theirs.adapter
        seen.expect(what not in await callers.models(mine.id), f"{who} is told of {what}")
        foreign, absent = await _refusal(callers, mine, what), await _refusal(callers, mine, _ABSENT)
        if foreign is None or absent is None:
            seen.expect(False, f"{who} can call {what}")
        else:
            seen.expect(foreign.status_code == 404, f"{who} calling {what} gets {foreign.status_code}")
            seen.expect(_same(error_body(foreign), error_body(absent), what), f"{who} can tell {what} from none")
        listed = {adapter["name"] for adapter in mine.control.get("/api/v1/adapters")["data"]}
        seen.expect(what not in listed, f"{who} lists {what}")
        status, body = mine.control.status_and_body(f"/api/v1/adapters/{what}")
        _, absent_body = mine.control.status_and_body(f"/api/v1/adapters/{_ABSENT}")
        seen.expect(status == 404, f"{who} reading {what} gets {status}")
        seen.expect(_same(body, absent_body, what), f"{who} can tell {what} from none in the control plane")
    for answer in answers:
        if answer.call.tag != "voice":
            seen.expect(SIGN_OFF not in answer.text, f"{answer.call.model} answered in another tenant's voice")
    return seen


async def _refusal(callers: Callers, tenant: Tenant, model: str) -> APIStatusError | None:
    call = Call(
        tenant=tenant.id, model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=1, stream=False, tag=""
    )
    return await callers.refusal(call)


def _same(body: dict[str, Any], absent: dict[str, Any], name: str) -> bool:
    """Whether two refusals are one and the same but for the name asked for and the request's own id."""
    anonymous = [{**each, "request_id": None, "instance": None} for each in (body, absent)]
    return str(anonymous[0]).replace(name, "?") == str(anonymous[1]).replace(_ABSENT, "?")


async def run_into_quota(admin: ControlPlane, callers: Callers, tenant: Tenant, base_model: str) -> dict[str, Any]:
    """Give the tenant one request a minute, call until it is refused, show the refusal, and take the limit back."""
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
        admin.patch(path, {"limits": {"requests_per_minute": None}})  # the plan's again
    headers = {
        name: value
        for name, value in refusal.response.headers.items()
        if name in _SHOWN_HEADERS or name.startswith("x-ratelimit-")
    }
    error = error_body(refusal)["error"]
    return {"status": refusal.status_code, "code": error["code"], "message": error["message"], "headers": headers}
