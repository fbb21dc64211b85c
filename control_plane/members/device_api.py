"""Routes of commands that sign in: those that a command calls without a key, and those that a person in the console
calls. The API's document leaves both out: they are for `tenora login`.
"""

from typing import Any, Final

from litestar import Controller, Request, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import Engine

from control_plane import tenant_scope
from control_plane.auth.authenticate import Pepper, Principal
from control_plane.members import device_login
from control_plane.members.schemas import (
    DeviceCodes,
    DeviceKey,
    DeviceLoginView,
    DevicePoll,
    NewDeviceAuthorization,
    TypedCode,
)
from control_plane.settings import ConsoleSettings, WebSettings
from core.db import unit_of_work

_WRITE: Final = {"scope": "logins:write"}


class DeviceSignIns(Controller):
    """What a command calls. It has no key yet, so these routes are open; settings bound how many codes are kept."""

    path = "/device-authorizations"
    include_in_schema = False

    @post(sync_to_thread=True)
    def ask_for_code(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[NewDeviceAuthorization],
        engine: NamedDependency[Engine],
        pepper: NamedDependency[Pepper],
        console_url: NamedDependency[str],
        console_settings: NamedDependency[ConsoleSettings],
    ) -> DeviceCodes:
        """Ask for a code that a person confirms within ten minutes."""
        with tenant_scope.every_tenant(), unit_of_work(engine) as session:
            return device_login.ask(
                session,
                pepper.value,
                label=data.label,
                address=request.client.host if request.client else "",
                console_url=console_url,
                rules=console_settings,
            )

    @post("/poll", status_code=200, sync_to_thread=True)
    def poll_for_key(
        self,
        data: JSONBody[DevicePoll],
        engine: NamedDependency[Engine],
        pepper: NamedDependency[Pepper],
        web: NamedDependency[WebSettings],
        console_settings: NamedDependency[ConsoleSettings],
    ) -> DeviceKey:
        """Ask whether the code was confirmed. Then this response alone has the key."""
        with tenant_scope.every_tenant(), unit_of_work(engine) as session:
            return device_login.poll(
                session, pepper.value, data.device_code, console_settings, keys_max=web.api_keys_max
            )


class DeviceLogins(Controller):
    """What a person calls in the console. Keys have no scope for these routes."""

    path = "/device-authorizations"
    include_in_schema = False
    opt = _WRITE

    @post(sync_to_thread=True)
    def claim_device_login(
        self,
        data: JSONBody[TypedCode],
        engine: NamedDependency[Engine],
        pepper: NamedDependency[Pepper],
        principal: NamedDependency[Principal],
        console_settings: NamedDependency[ConsoleSettings],
    ) -> DeviceLoginView:
        """Find the command that shows this code. From then on no other person can confirm it."""
        return device_login.claim(engine, pepper.value, data.code, principal, console_settings)

    @get("/{code:str}", sync_to_thread=True)
    def get_device_login(
        self,
        code: FromPath[str],
        engine: NamedDependency[Engine],
        pepper: NamedDependency[Pepper],
        principal: NamedDependency[Principal],
    ) -> DeviceLoginView:
        """Get a command whose code the person has typed."""
        with tenant_scope.every_tenant(), unit_of_work(engine) as session:
            return device_login.get(session, pepper.value, code, principal)

    @post("/{code:str}/confirm", sync_to_thread=True)
    def confirm_device_login(
        self,
        code: FromPath[str],
        engine: NamedDependency[Engine],
        pepper: NamedDependency[Pepper],
        principal: NamedDependency[Principal],
    ) -> None:
        """Let the command have a key that acts for the tenant."""
        with tenant_scope.every_tenant(), unit_of_work(engine) as session:
            device_login.confirm(session, pepper.value, code, principal)
