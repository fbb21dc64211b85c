"""Calls of a control plane with one API key, for the commands and the demo of `tenora`."""

import time
from collections.abc import Iterator
from typing import Any, Final, Self

import click
import httpx

_ATTEMPTS_MAX: Final = 5
_RETRY_AFTER_MAX_S: Final = 10
_PAGE_ITEMS: Final = 100


class ControlPlaneError(click.ClickException):
    """A call failed. The message names the fix; ``facts`` is the control plane's answer where there is one."""

    def __init__(self, message: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.facts = facts or {}


class ControlPlaneClient:
    """Calls of one server. One without an answer, or with a 503, is sent again, unless it may not be repeated."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)

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
        params: dict[str, str] | None = None,
        refuse: bool = True,
        repeat: bool = True,
    ) -> httpx.Response:
        """The answer. Raises ``ControlPlaneError`` when there is none and, unless ``refuse`` is False, for an error.
        ``repeat``: whether it may be sent again, so that its effect may happen twice.
        """
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            last = attempt == _ATTEMPTS_MAX or not repeat
            try:
                answer = self._http.request(method, path, json=body, headers=headers, params=params)
            except httpx.HTTPError as error:
                if last:
                    raise ControlPlaneError(f"{self._http.base_url} does not answer: {error}") from error
                pause_s = 0.2 * 2**attempt
            else:
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or last:
                    break
                pause_s = min(float(answer.headers.get("retry-after", "1")), _RETRY_AFTER_MAX_S)
            time.sleep(pause_s)
        if refuse and answer.is_error:
            raise refusal(answer)
        return answer

    def pages(self, path: str, *, items: int = _PAGE_ITEMS) -> Iterator[dict[str, Any]]:
        """All pages of a list, of so many items each."""
        params = {"limit": str(items)}
        while True:
            page: dict[str, Any] = self.call("GET", path, params=params).json()
            yield page
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]

    def items(self, path: str) -> list[dict[str, Any]]:
        """All items of a list."""
        return [item for page in self.pages(path) for item in page["data"]]


def refusal(answer: httpx.Response) -> ControlPlaneError:
    """The error of an answer, with its code and request id in the message."""
    try:
        problem = answer.json()
        return ControlPlaneError(f"{problem['detail']} ({problem['code']}, {problem['request_id']})", problem)
    except (ValueError, KeyError, TypeError):
        where = f"{answer.request.method} {answer.request.url.path}"
        return ControlPlaneError(f"{where}: {answer.status_code} {answer.text[:200]}")
