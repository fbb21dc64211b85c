"""Uploads an adapter folder through the REST API: announce it, send what is missing, complete, wait for the report.

Uploading the same folder again resumes the same revision, because the announcement is keyed by its contents. Only
the two files of an adapter are sent; other files of the folder are not.
"""

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from adapters.validation.file_rules import REQUIRED_FILES, missing_files
from core.contracts.routes import PROD
from tenora.client import Tenora, TenoraError, refusal
from tenora.upload.transport import SendFailed, parts_of, send

_ROUNDS_MAX: Final = 3
_ANNOUNCEMENTS_MAX: Final = 20
_POLL_S: Final = 0.25
_STAGES: Final = {
    "checking": "checking the files",
    "canary": "trying it on a replica",
    "publishing": "telling the gateways",
}
_HASH_CHUNK_BYTES: Final = 1 << 20
_CONFIG_BYTES_MAX: Final = 1 << 20


class UploadFailed(TenoraError):
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
    """Callbacks for progress: ``show_line`` gets text, ``sending`` the bytes to send, ``sent`` the bytes just sent,
    ``stage`` what the validation does now.
    """

    show_line: Callable[[str], None] = field(default=lambda _: None)
    sending: Callable[[int], None] = field(default=lambda _: None)
    sent: Callable[[int], None] = field(default=lambda _: None)
    stage: Callable[[str], None] = field(default=lambda _: None)


def read_folder(path: Path) -> Folder:
    """Read an adapter's folder and hash its files. Raises ``UploadFailed`` that names a missing file."""
    names = sorted(each.name for each in path.iterdir())
    for name, text in missing_files(names):
        whole = [each for each in names if all((path / each / file).is_file() for file in REQUIRED_FILES)]
        found = f"is not here, but {', '.join(whole)} has an adapter: upload that folder" if whole else text
        raise UploadFailed(f"{path}: {name} {found}")
    declared = [_declared(path / name) for name in REQUIRED_FILES]
    left_out = [name for name in names if name not in REQUIRED_FILES]
    return Folder(path=path, declared=declared, left_out=left_out, base_model=_base_model(path / REQUIRED_FILES[0]))


class Uploader:
    """One tenant's uploads through one control plane."""

    def __init__(self, client: Tenora, progress: UploadProgress) -> None:
        self._client = client
        self._progress = progress

    def ensure_adapter(self, name: str, *, wanted: str | None, named: str | None) -> bool:
        """Create the adapter unless the tenant has one of this name: for the base model ``wanted`` by the user, else
        the one ``named`` in the adapter's config. Returns whether it was created. Raises ``UploadFailed`` when the
        adapter is for another base model.
        """
        answer = self._client.call("GET", f"/api/v1/adapters/{quote(name, safe='')}", refuse=False)
        if answer.status_code == httpx.codes.NOT_FOUND:
            base_model = wanted or named
            if base_model is None:
                raise UploadFailed(f"there is no adapter {name!r}, and its base model is not known: use --base-model")
            self._create(name, base_model)
            return True
        if answer.is_error:
            raise refusal(answer)
        existing = answer.json()
        if wanted is None or self._is_for(existing["base_model"], wanted):
            return False
        if existing["newest_ready"] is None:
            with suppress(TenoraError):  # the name is free if all that was uploaded to it was rejected
                self._create(name, wanted)
                return True
        raise UploadFailed(
            f"{name} is for {existing['base_model']}, not for {wanted}: leave out --base-model, or choose another "
            "--adapter"
        )

    def _create(self, name: str, base_model: str) -> None:
        made = self._client.call("POST", "/api/v1/adapters", {"name": name, "base_model": base_model}).json()
        self._progress.show_line(f"created adapter {name} for {made['base_model']}")

    def _is_for(self, base_model: str, wanted: str) -> bool:
        known = {base_model}
        for each in self._client.items("/api/v1/base-models"):
            if each["id"] == base_model:
                known |= {each["hub_name"], *each["names"]}
        return wanted.casefold() in {each.casefold() for each in known}

    def serves(self, adapter: str) -> str | None:
        """The revision that calls of the adapter's name get; None where several share the alias ``prod``."""
        found: str | None = self._client.call("GET", f"/api/v1/adapters/{adapter}").json()["serves"]
        return found

    def promote(self, adapter: str, revision_id: str) -> bool:
        """Move the alias ``prod`` to this revision. Returns False if a gateway has not confirmed the move in time."""
        answer = self._client.call("PUT", f"/api/v1/adapters/{adapter}/aliases/{PROD}", {"revision": revision_id})
        return bool(answer.json().get("acknowledged", True))  # absent where the platform waits for no gateway

    def aliases(self, adapter: str) -> dict[str, str | None]:
        """The revision that each alias of the adapter serves; None where several share it."""
        found = self._client.call("GET", f"/api/v1/adapters/{adapter}/aliases").json()["data"]
        return {alias["name"]: alias["revision"] for alias in found}

    def upload(self, folder: Folder, adapter: str, *, timeout_s: float, created: bool = False) -> dict[str, Any]:
        """Upload and return the revision, ready or rejected. Raises ``UploadFailed``; the same call resumes. An adapter
        that was ``created`` for this upload is deleted if its first announcement is refused.
        """
        try:
            revision = self._announce(folder, adapter)
        except TenoraError:
            if created:
                self._client.call("DELETE", f"/api/v1/adapters/{adapter}", refuse=False)
            raise
        where = f"/api/v1/adapters/{adapter}/revisions/{revision['id']}"
        if revision["status"] == "uploading":
            self._send(folder, where)
        self._progress.show_line(f"{revision['id']} is uploaded; waiting for validation")
        return self._wait_until_decided(where, timeout_s)

    def _announce(self, folder: Folder, adapter: str) -> dict[str, Any]:
        """The revision of exactly these files: open, ready or validating, else a new one."""
        adapter_id = self._client.call("GET", f"/api/v1/adapters/{adapter}").json()[
            "id"
        ]  # another adapter may get the same name later
        key = _digest({"adapter": adapter_id, "files": folder.declared})
        for _ in range(_ANNOUNCEMENTS_MAX):
            path, body = f"/api/v1/adapters/{adapter}/revisions", {"files": folder.declared}
            answer = self._client.call("POST", path, body, headers={"Idempotency-Key": key})
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
            parts = parts_of(folder.path, self._client.call("GET", f"{where}/uploads").json()["uploads"])
            self._progress.sending(sum(part.size_bytes for part in parts))
            try:
                send(parts, self._progress.sent)
            except SendFailed as error:  # the store may have dropped the upload: fresh URLs start it again
                failure = str(error)
                continue
            answer = self._client.call("POST", f"{where}/complete", refuse=False)
            if answer.is_success:
                return
            failure = refusal(answer).message
            if answer.json().get("code") != "artifact_missing":
                break
        raise UploadFailed(f"{failure} (run the same command again to resume)")

    def _wait_until_decided(self, where: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            revision: dict[str, Any] = self._client.call("GET", where).json()
            if revision["status"] in ("ready", "rejected"):
                return revision
            self._progress.stage(_STAGES.get(revision["stage"] or "", "waiting"))
            if time.monotonic() > deadline:
                raise UploadFailed(
                    f"validation did not finish within {timeout_s:g} s; run the same command again to keep waiting"
                )
            time.sleep(_POLL_S)


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
