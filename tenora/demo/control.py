"""A client of the control plane's REST API for the demo, over plain HTTP, as an admin or a tenant would write it."""

from pathlib import Path
from typing import Any, Final

import httpx

from tenora.upload.client import Uploader, UploadProgress, read_folder

_VERDICT_S: Final = 60


class ControlPlane:
    """A client of the control plane with one API key."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)

    def get(self, path: str, **params: str) -> Any:
        """The JSON of a GET; raises RuntimeError with the problem's text on a refusal."""
        return self._json(self._http.get(path, params=params))

    def content(self, path: str) -> bytes:
        """The bytes of a GET, such as a file's; raises RuntimeError with the problem's text on a refusal."""
        response = self._http.get(path)
        if response.is_error:
            raise RuntimeError(f"GET {path}: {response.status_code} {response.text}")
        return response.content

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
        """Create the adapter and its first revision."""
        self.post("/api/v1/adapters", {"name": name, "base_model": base_model})
        return self.upload_revision(name, folder)

    def upload_revision(self, name: str, folder: Path) -> dict[str, Any]:
        """Upload an adapter's folder and wait until the revision is ready. Raises RuntimeError when it is rejected."""
        uploader = Uploader(self._url, self._key, UploadProgress())
        try:
            revision = uploader.upload(read_folder(folder), name, timeout_s=_VERDICT_S)
        finally:
            uploader.close()
        if revision["status"] != "ready":
            raise RuntimeError(f"{name} was rejected: {revision['report']}")
        return revision

    @staticmethod
    def _json(response: httpx.Response) -> Any:
        if response.is_error:
            raise RuntimeError(
                f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text}"
            )
        return response.json()
