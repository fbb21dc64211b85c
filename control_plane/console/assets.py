"""The console's own styles, scripts and icon, under names with the digest of their content, so that browsers may keep
them for good.
"""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from litestar import Response

from core.errors import NotFound

_FOLDER: Final = Path(__file__).parent / "assets"
_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class _Asset:
    content: bytes
    packed: bytes
    media_type: str


class Assets:
    """All files of the folder, read once."""

    def __init__(self) -> None:
        self._by_path: dict[str, _Asset] = {}
        self._paths: dict[str, str] = {}
        for file in sorted(_FOLDER.iterdir()):
            content = file.read_bytes()
            path = f"/assets/{file.stem}.{hashlib.sha256(content).hexdigest()[:12]}{file.suffix}"
            packed = gzip.compress(content, mtime=0)
            self._by_path[path] = _Asset(content=content, packed=packed, media_type=_TYPES[file.suffix])
            self._paths[file.name] = path

    def path_of(self, name: str) -> str:
        """The path of a file."""
        return self._paths[name]

    def answer(self, path: str, accepted: str) -> Response[bytes]:
        """The file at a path, compressed where the browser accepts it. Raises NotFound."""
        asset = self._by_path.get(path)
        if asset is None:
            raise NotFound("There is no such file. Reload the page.")
        headers = {
            "cache-control": "public, max-age=31536000, immutable",
            "vary": "accept-encoding",
            "x-content-type-options": "nosniff",
        }
        if "gzip" in accepted:
            return Response(asset.packed, media_type=asset.media_type, headers=headers | {"content-encoding": "gzip"})
        return Response(asset.content, media_type=asset.media_type, headers=headers)
