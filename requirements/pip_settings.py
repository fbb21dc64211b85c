"""Prints pip's settings as shell assignments that give uv the same settings. Installs nothing and contacts nothing.

``uv.sh`` evaluates the output. Runs on any Python from 3.8 on, with or without pip: there may be no Python 3.11 yet.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

# What a distribution's own pip trusts: uv trusts its bundled certificates until UV_SYSTEM_CERTS is set.
_SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


def pip_settings(config_list: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Pip's settings by long option name, from the output of ``pip config list`` and the ``PIP_*`` variables.

    Later wins, as in pip: ``[global]``, then ``[install]``, then the environment.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for line in config_list.splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.partition(".")
        if section in sections:
            sections[section][name.replace("_", "-")] = str(ast.literal_eval(quoted))
    settings = {**sections["global"], **sections["install"]}
    for variable, value in environment.items():
        if variable.startswith("PIP_") and value:
            settings[variable[len("PIP_") :].lower().replace("_", "-")] = value
    return settings


def uv_environment(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for uv that mean the same as ``settings``, less those that ``environment`` sets under any name."""
    translated: dict[str, str] = {}

    def give(names: str, value: str | None) -> None:
        first, *others = names.split()
        if value and not any(environment.get(name) for name in (first, *others)):
            translated[first] = value

    def paths(name: str) -> list[str]:
        return [
            str(Path(word).expanduser()) if word.startswith("~") else word for word in settings.get(name, "").split()
        ]

    give("UV_DEFAULT_INDEX UV_INDEX_URL", settings.get("index-url"))
    give("UV_INDEX UV_EXTRA_INDEX_URL", " ".join(paths("extra-index-url")))
    # pip looks in every index. The locks' hashes decide what is installed, so no index can slip in another package.
    give("UV_INDEX_STRATEGY", "unsafe-best-match")
    give("UV_FIND_LINKS", ",".join(paths("find-links")))
    give("UV_INSECURE_HOST", " ".join(settings.get("trusted-host", "").split()))
    give("UV_HTTP_TIMEOUT UV_REQUEST_TIMEOUT HTTP_TIMEOUT", settings.get("timeout", settings.get("default-timeout")))
    give("UV_HTTP_RETRIES", settings.get("retries"))
    give("UV_KEYRING_PROVIDER", "subprocess" if settings.get("keyring-provider") == "subprocess" else None)
    give("SSL_CLIENT_CERT", "".join(paths("client-cert")))
    certificates = "".join(paths("cert")) or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    give("SSL_CERT_FILE SSL_CERT_DIR UV_SYSTEM_CERTS UV_NATIVE_TLS", certificates)
    if not certificates and any(map(os.path.exists, _SYSTEM_CERTIFICATES)):
        give("UV_SYSTEM_CERTS UV_NATIVE_TLS SSL_CERT_FILE SSL_CERT_DIR", "1")
    proxy = settings.get("proxy", "")
    proxy = proxy if "://" in proxy or not proxy else f"http://{proxy}"
    give("HTTPS_PROXY https_proxy ALL_PROXY all_proxy", proxy)
    give("HTTP_PROXY http_proxy ALL_PROXY all_proxy", proxy)
    if _is_true(settings.get("no-cache-dir")):
        give("UV_NO_CACHE UV_CACHE_DIR", "1")
    else:
        give("UV_CACHE_DIR UV_NO_CACHE", "".join(f"{path}/uv" for path in paths("cache-dir")))
    return translated


def assignments(settings: Mapping[str, str], environment: Mapping[str, str]) -> Iterable[str]:
    """Lines for a shell. ``uv_options`` holds what uv takes as an option only."""
    for name, value in uv_environment(settings, environment).items():
        yield f"export {name}={shlex.quote(value)}"
    yield f"uv_options={'--no-index' if _is_true(settings.get('no-index')) else ''}"


def _is_true(value: str | None) -> bool:
    return (value or "").lower() in {"1", "true", "yes", "on", "y", "t"}


if __name__ == "__main__":
    listed = subprocess.run(
        (sys.executable, "-m", "pip", "config", "list"), capture_output=True, text=True, check=False
    )
    for assignment in assignments(pip_settings(listed.stdout, os.environ), os.environ):
        print(assignment)
