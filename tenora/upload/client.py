"""Uploads an adapter folder through the REST API: announce it, send what is missing, complete, wait for the report.

Uploading the same folder again resumes the same revision, because the announcement is keyed by its contents. Only
the two files of an adapter are sent; other files of the folder are not.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from tenora.upload.transport import SendFailed, parts_of, send

FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
_ROUNDS_MAX: Final = 3
_ANNOUNCEMENTS_MAX: Final = 20
_ATTEMPTS_MAX: Final = 5
_RETRY_AFTER_MAX_S: Final = 10
_POLL_S: Final = 0.25
_HASH_CHUNK_BYTES: Final = 1 << 20
_CONFIG_BYTES_MAX: Final = 1 << 20


class UploadFailed(Exception):
    """The upload failed. The message names the fix."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """An adapter's folder: sizes and hashes of its two files, and the names of the files that are not sent."""

    path: Path
    declared: list[dict[str, Any]]
    left_out: list[str]
    base_model: str | None


@dataclass(kw_only=True)
class UploadProgress:
    """Callbacks for progress: ``show_line`` gets text, ``sending`` the bytes to send, ``sent`` the bytes just sent."""

    show_line: Callable[[str], None] = field(default=lambda _: None)
    sending: Callable[[int], None] = field(default=lambda _: None)
    sent: Callable[[int], None] = field(default=lambda _: None)


def read_folder(path: Path) -> Folder:
    """Read an adapter's folder and hash its files. Raises ``UploadFailed`` that names a missing file."""
    names = sorted(each.name for each in path.iterdir())
    for name in FILES:
        if name not in names:
            hint = "; save it with save_pretrained(safe_serialization=True)" if "adapter_model.bin" in names else ""
            raise UploadFailed(f"{path}: {name} is missing; a PEFT adapter is {' and '.join(FILES)}{hint}")
    declared = [_declared(path / name) for name in FILES]
    left_out = [name for name in names if name not in FILES]
    return Folder(path=path, declared=declared, left_out=left_out, base_model=_base_model(path / FILES[0]))


class Uploader:
    """One tenant's uploads through one control plane."""

    def __init__(self, url: str, key: str, progress: UploadProgress) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        self._progress = progress

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ensure_adapter(self, name: str, base_model: str | None) -> None:
        """Create the adapter for ``base_model`` (an id or Hub name) unless the tenant has one of this name."""
        answer = self._call("GET", f"/api/v1/adapters/{name}", refuse=False)
        if answer.status_code == httpx.codes.NOT_FOUND:
            if base_model is None:
                raise UploadFailed(f"there is no adapter {name!r}, and its base model is not known: use --base-model")
            self._call("POST", "/api/v1/adapters", {"name": name, "base_model": base_model})
            self._progress.show_line(f"created adapter {name} for {base_model}")
        elif answer.is_error:
            raise UploadFailed(_problem(answer))

    def upload(self, folder: Folder, adapter: str, *, timeout_s: float) -> dict[str, Any]:
        """Upload and return the revision, ready or rejected. Raises ``UploadFailed``; the same call resumes."""
        revision = self._announce(folder, adapter)
        where = f"/api/v1/adapters/{adapter}/revisions/{revision['id']}"
        if revision["status"] == "uploading":
            self._send(folder, where)
        self._progress.show_line(f"{revision['id']} is uploaded; waiting for validation")
        return self._wait_until_decided(where, timeout_s)

    def _announce(self, folder: Folder, adapter: str) -> dict[str, Any]:
        """The revision of exactly these files: open, ready or validating, else a new one."""
        adapter_id = self._call("GET", f"/api/v1/adapters/{adapter}").json()[
            "id"
        ]  # another adapter may get the same name later
        key = _digest({"adapter": adapter_id, "files": folder.declared})
        for _ in range(_ANNOUNCEMENTS_MAX):
            path, body = f"/api/v1/adapters/{adapter}/revisions", {"files": folder.declared}
            answer = self._call("POST", path, body, headers={"Idempotency-Key": key})
            revision: dict[str, Any] = answer.json()
            given_up = revision["status"] == "uploading" and not revision["uploads"]
            if "idempotent-replayed" not in answer.headers or not (given_up or revision["status"] == "rejected"):
                return revision
            key = _digest(
                {"after": revision["id"]}
            )  # that revision is over: the next key is derived from it, so that a repetition finds the same one
        raise UploadFailed(f"{adapter}: these files were rejected {_ANNOUNCEMENTS_MAX} times; see the last report")

    def _send(self, folder: Folder, where: str) -> None:
        failure = ""
        for _ in range(_ROUNDS_MAX):
            parts = parts_of(folder.path, self._call("GET", f"{where}/uploads").json()["uploads"])
            self._progress.sending(sum(part.size_bytes for part in parts))
            try:
                send(parts, self._progress.sent)
            except SendFailed as error:  # the store may have dropped the upload: fresh URLs start it again
                failure = str(error)
                continue
            answer = self._call("POST", f"{where}/complete", refuse=False)
            if answer.is_success:
                return
            failure = _problem(answer)
            if answer.json().get("code") != "artifact_missing":
                break
        raise UploadFailed(f"{failure} (run the same command again to resume)")

    def _wait_until_decided(self, where: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            revision: dict[str, Any] = self._call("GET", where).json()
            if revision["status"] in ("ready", "rejected"):
                return revision
            if time.monotonic() > deadline:
                raise UploadFailed(
                    f"validation did not finish within {timeout_s:g} s; run the same command again to keep waiting"
                )
            time.sleep(_POLL_S)

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        refuse: bool = True,
    ) -> httpx.Response:
        """One call of the control plane, retried when it gets no answer: every call here may be sent twice."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                answer = self._http.request(method, path, json=body, headers=headers)
            except httpx.HTTPError as error:
                if attempt == _ATTEMPTS_MAX:
                    raise UploadFailed(f"{self._http.base_url} does not answer: {error}") from error
                pause_s = 0.2 * 2**attempt
            else:
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or attempt == _ATTEMPTS_MAX:
                    break
                pause_s = min(float(answer.headers.get("retry-after", "1")), _RETRY_AFTER_MAX_S)
            time.sleep(pause_s)
        if refuse and answer.is_error:
            raise UploadFailed(_problem(answer))
        return answer


def _declared(path: Path) -> dict[str, Any]:
    hasher, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_HASH_CHUNK_BYTES):
            hasher.update(chunk)
            size_bytes += len(chunk)
    return {"path": path.name, "size_bytes": size_bytes, "sha256": hasher.hexdigest()}


def _base_model(config: Path) -> str | None:
    """The base model that the adapter's config names. Validation checks the file; this only reads one field."""
    with config.open("rb") as stream:
        text = stream.read(_CONFIG_BYTES_MAX)
    try:
        named = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    found = named.get("base_model_name_or_path") if isinstance(named, dict) else None
    return found if isinstance(found, str) and found else None


def _digest(value: Any) -> str:
    return "upload-" + hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def _problem(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        return f"{problem['detail']} ({problem['code']}, {problem['request_id']})"
    except (ValueError, KeyError, TypeError):
        return f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:200]}"
