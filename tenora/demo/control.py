"""A client of the control plane's REST API for the demo, as an admin or a tenant would write it."""

from pathlib import Path
from typing import Any, Final

from tenora.client import Tenora
from tenora.upload.client import Uploader, UploadProgress, read_folder

_VERDICT_S: Final = 60


class ControlPlane(Tenora):
    """Calls by method, each with the answer's JSON. All raise ``TenoraError`` with the problem's text."""

    def get(self, path: str, **params: str) -> Any:
        """The JSON of a GET."""
        return self.call("GET", path, params=params).json()

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON of a POST."""
        return self.call("POST", path, body, repeat=False).json()

    def patch(self, path: str, body: Any) -> Any:
        """The JSON of a PATCH."""
        return self.call("PATCH", path, body).json()

    def put(self, path: str, body: Any) -> Any:
        """The JSON of a PUT."""
        return self.call("PUT", path, body).json()

    def delete(self, path: str) -> None:
        """A DELETE."""
        self.call("DELETE", path)

    def upload_adapter(self, name: str, base_model: str, folder: Path) -> dict[str, Any]:
        """Create the adapter and its first revision."""
        self.post("/api/v1/adapters", {"name": name, "base_model": base_model})
        return self.upload_revision(name, folder)

    def upload_revision(self, name: str, folder: Path) -> dict[str, Any]:
        """Upload an adapter's folder and wait until the revision is ready. Raises RuntimeError when it is rejected."""
        revision = Uploader(self, UploadProgress()).upload(read_folder(folder), name, timeout_s=_VERDICT_S)
        if revision["status"] != "ready":
            raise RuntimeError(f"{name} was rejected: {revision['report']}")
        return revision
