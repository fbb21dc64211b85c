"""The control plane's REST API as the demo uses it, over plain HTTP: what an admin or a tenant would write."""

import hashlib
import time
from pathlib import Path
from typing import Any, Final

import httpx

_VALIDATION_S: Final = 60
IGNORED_FILES: Final = frozenset({"README.md"})


class ControlPlane:
    """One caller of the control plane, holding one key."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)

    def get(self, path: str, **params: str) -> Any:
        """The JSON of a GET; raises RuntimeError with the problem's text on a refusal."""
        return self._json(self._http.get(path, params=params))

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON of a POST."""
        return self._json(self._http.post(path, json=body))

    def patch(self, path: str, body: Any) -> Any:
        """The JSON of a PATCH."""
        return self._json(self._http.patch(path, json=body))

    def put(self, path: str, body: Any) -> Any:
        """The JSON of a PUT."""
        return self._json(self._http.put(path, json=body))

    def delete(self, path: str) -> None:
        """A DELETE."""
        response = self._http.delete(path)
        if response.is_error:
            raise RuntimeError(f"DELETE {path}: {response.status_code} {response.text}")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def status_and_body(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a GET, refused or not."""
        response = self._http.get(path)
        return response.status_code, response.json()

    def upload_adapter(self, name: str, base_model: str, folder: Path) -> dict[str, Any]:
        """Create the adapter, and its first revision."""
        self.post("/api/v1/adapters", {"name": name, "base_model": base_model})
        return self.upload_revision(name, folder)

    def upload_revision(self, name: str, folder: Path) -> dict[str, Any]:
        """PUT an adapter's files to presigned URLs, and wait until the revision is ready."""
        files = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.name not in IGNORED_FILES}
        declared = [
            {"path": path, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in files.items()
        ]
        revision = self.post(f"/api/v1/adapters/{name}/revisions", {"files": declared})
        for upload in revision["uploads"]:
            content = files[upload["path"]]
            httpx.request(
                upload["method"], upload["url"], headers=upload["headers"], content=content, timeout=60
            ).raise_for_status()
        where = f"/api/v1/adapters/{name}/revisions/{revision['id']}"
        self.post(f"{where}/complete")
        deadline = time.monotonic() + _VALIDATION_S
        while time.monotonic() < deadline:
            now: dict[str, Any] = self.get(where)
            if now["status"] == "ready":
                return now
            if now["status"] == "rejected":
                raise RuntimeError(f"{name} was rejected: {now['report']}")
            time.sleep(0.1)
        raise RuntimeError(f"{name} was not validated within {_VALIDATION_S} s")

    @staticmethod
    def _json(response: httpx.Response) -> Any:
        if response.is_error:
            raise RuntimeError(
                f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text}"
            )
        return response.json()
