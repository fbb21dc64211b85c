"""Which pages of other origins a browser lets call the API: exactly those in the settings, with a key and no cookies.

What the same pages may do with presigned URLs is a rule of the bucket: ``adapters.object_store.s3``.
"""

from collections.abc import Sequence

from litestar.config.cors import CORSConfig


def cors_rules(origins: Sequence[str]) -> CORSConfig | None:
    """Rules for exactly these origins, or None for no other origin at all. Fails closed: a browser shows nothing of an
    answer to a page that is not named.
    """
    if not origins:
        return None
    return CORSConfig(
        allow_origins=list(origins),
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["authorization", "content-type", "idempotency-key"],
        expose_headers=["idempotent-replayed", "retry-after", "www-authenticate", "x-request-id"],
        allow_credentials=False,
        max_age=600,
    )
