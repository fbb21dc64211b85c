"""The client of a Tenora platform: its control plane's API as methods, and chats at its gateways.

``Tenora()`` calls as `tenora login` has signed in. Answers are the API's JSON, and ``call`` gives whole responses. The
import is light: the HTTP library is loaded with the first client.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from urllib.parse import quote

from tenora.profiles import find_access

if TYPE_CHECKING:
    import httpx

Json: TypeAlias = dict[str, Any]
_ATTEMPTS_MAX: Final = 5
_RETRY_AFTER_MAX_S: Final = 10
_PAGE_ITEMS: Final = 100
_UNAVAILABLE: Final = 503
_CHAT_S: Final = 610  # as long as a request may run


class TenoraError(Exception):
    """A call failed. The message names the fix; ``facts`` is the platform's answer where there is one."""

    def __init__(self, message: str, facts: Json | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts or {}


class Tenora:
    """Calls of one platform with one API key. What is not given is TENORA_CONTROL_URL, TENORA_API_KEY and
    TENORA_GATEWAY_URL, or else of the profile that `tenora login` wrote; an empty key sends none. A call without an
    answer, or with a 503, is sent again, unless it may not be repeated.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        gateway_url: str | None = None,
        profile: str | None = None,
    ) -> None:
        import httpx

        if url is None or key is None:
            url, key, gateway_url = find_access(url, key, gateway_url, profile)
        if url is None or key is None:
            raise TenoraError("no control plane or no API key; run 'tenora login', or give url and key")
        self.url = url.rstrip("/")
        self._gateway_url = gateway_url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,  # JSON
        *,
        headers: dict[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        refuse: bool = True,
        repeat: bool = True,
    ) -> "httpx.Response":
        """The answer. Raises ``TenoraError`` when there is none and, unless ``refuse`` is False, for an error.
        ``repeat``: whether it may be sent again, so that its effect may happen twice.
        """
        import httpx

        for attempt in range(1, _ATTEMPTS_MAX + 1):
            last = attempt == _ATTEMPTS_MAX or not repeat
            try:
                answer = self._http.request(method, path, json=body, headers=headers, params=params)
            except httpx.HTTPError as error:
                if last:
                    raise TenoraError(f"{self.url} does not answer: {error}") from error
                pause_s = 0.2 * 2**attempt
            else:
                if answer.status_code != _UNAVAILABLE or last:
                    break
                pause_s = min(float(answer.headers.get("retry-after", "1")), _RETRY_AFTER_MAX_S)
            time.sleep(pause_s)
        if refuse and answer.is_error:
            raise refusal(answer)
        return answer

    def pages(self, path: str, *, items: int = _PAGE_ITEMS, params: Mapping[str, str] | None = None) -> Iterator[Json]:
        """All pages of a list, of so many items each."""
        sent = {**(params or {}), "limit": str(items)}
        while True:
            page: Json = self.call("GET", path, params=sent).json()
            yield page
            if page["next_cursor"] is None:
                return
            sent["cursor"] = page["next_cursor"]

    def items(self, path: str) -> list[Json]:
        """All items of a list."""
        return [item for page in self.pages(path) for item in page["data"]]

    def read(self, *path: str, **params: str) -> Json:
        """What is at a path below /api/v1, given in parts."""
        found: Json = self.call("GET", path_of(*path), params=params).json()
        return found

    def keys(self) -> list[Json]:
        """The tenant's API keys, newest first, revoked ones too."""
        return self.items(path_of("api-keys"))

    def create_key(
        self,
        name: str,
        scopes: Sequence[str] = (),
        *,
        models: Sequence[str] = (),
        expires_in_days: int | None = None,
    ) -> Json:
        """A new API key, by default with the scopes of this client's and for all models. Its secret is in this answer
        alone.
        """
        asked = {"scopes": list(scopes), "models": list(models), "expires_in_days": expires_in_days}
        body = {"name": name, **{field: value for field, value in asked.items() if value}}
        made: Json = self.call("POST", path_of("api-keys"), body, repeat=False).json()
        return made

    def rotate_key(self, key_id: str, *, overlap: str = "24h") -> Json:
        """A new secret for a key, which is in this answer alone. The one before it stays valid for the overlap: none,
        1h, 24h or 7d.
        """
        made: Json = self.call("POST", path_of("api-keys", key_id, "rotate"), {"overlap": overlap}, repeat=False).json()
        return made

    def revoke_key(self, key_id: str) -> None:
        """Revoke an API key: gateways refuse it."""
        self.call("DELETE", path_of("api-keys", key_id))

    def quota(self) -> Json:
        """Limits, what is used of them, and what running requests hold."""
        return self.read("quota")

    def usage(self, **params: str) -> Json:
        """Usage in buckets; parameters as of ``GET /api/v1/usage``."""
        return self.read("usage", **params)

    def requests(self, filters: Mapping[str, str] | None = None, *, items: int = _PAGE_ITEMS) -> Iterator[Json]:
        """Pages of the request log, newest first; filters as of ``GET /api/v1/requests``."""
        return self.pages(path_of("requests"), items=items, params=filters)

    def invoices(self) -> list[Json]:
        """The tenant's invoices, newest first."""
        return self.items(path_of("invoices"))

    def invoice(self, invoice_id: str) -> Json:
        """One invoice with its lines."""
        return self.read("invoices", invoice_id)

    def invoice_pdf(self, invoice_id: str) -> bytes:
        """One invoice as PDF."""
        return self.call("GET", path_of("invoices", invoice_id, "pdf")).content

    def adapters(self) -> list[Json]:
        """The tenant's adapters, newest first."""
        return self.items(path_of("adapters"))

    def adapter(self, name: str) -> Json:
        """One adapter."""
        return self.read("adapters", name)

    def revisions(self, name: str) -> list[Json]:
        """An adapter's revisions, newest first."""
        return self.items(path_of("adapters", name, "revisions"))

    def aliases(self, name: str) -> list[Json]:
        """An adapter's aliases with what they serve."""
        found: list[Json] = self.read("adapters", name, "aliases")["data"]
        return found

    def move_alias(self, name: str, alias: str, revision: str) -> Json:
        """Let an alias of an adapter serve one revision. The answer has what it served before."""
        moved: Json = self.call("PUT", path_of("adapters", name, "aliases", alias), {"revision": revision}).json()
        return moved

    def delete_adapter(self, name: str) -> None:
        """Delete an adapter with all its revisions."""
        self.call("DELETE", path_of("adapters", name))

    def chat(self, model: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[Json]:
        """The events of a streamed chat completion, in OpenAI's format; ``options`` are fields of its body."""
        import httpx

        if not self._gateway_url:
            raise TenoraError("no address of the gateways; run 'tenora login', or set TENORA_GATEWAY_URL")
        url = f"{self._gateway_url.rstrip('/')}/v1/chat/completions"
        usage = {"include_usage": True}
        body = {"model": model, "messages": list(messages), "stream": True, "stream_options": usage, **options}
        try:
            with self._http.stream("POST", url, json=body, timeout=httpx.Timeout(_CHAT_S, connect=10)) as answer:
                if answer.is_error:
                    answer.read()
                    raise refusal(answer)
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        event: Json = json.loads(line.removeprefix("data: "))
                        if "error" in event:
                            raise TenoraError(event["error"]["message"], event["error"])
                        yield event
        except httpx.HTTPError as error:
            raise TenoraError(f"{self._gateway_url} does not answer: {error}") from error


def path_of(*parts: str) -> str:
    """The path of something below /api/v1, each part quoted."""
    return "/api/v1/" + "/".join(quote(part, safe="") for part in parts)


def refusal(answer: "httpx.Response") -> TenoraError:
    """The error of an answer of the control plane or a gateway, with its code and request id in the message."""
    try:
        problem = answer.json()
        if "error" in problem:  # as OpenAI writes it
            error = problem["error"]
            return TenoraError(f"{error['message']} ({error['code']}, {answer.headers['x-request-id']})", error)
        return TenoraError(f"{problem['detail']} ({problem['code']}, {problem['request_id']})", problem)
    except (ValueError, KeyError, TypeError):
        where = f"{answer.request.method} {answer.request.url.path}"
        return TenoraError(f"{where}: {answer.status_code} {answer.text[:200]}")
