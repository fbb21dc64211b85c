"""The CORS rules of the API: pages of the configured origins may call it with a key, and without cookies.

The bucket has its own rules for presigned URLs: ``adapters.object_store.s3``.
"""

from collections.abc import Sequence

from litestar.config.cors import CORSConfig


def cors_rules(origins: Sequence[str]) -> CORSConfig | None:
    """Rules for exactly these origins; None, for an empty list, allows no other origin. Fails closed: a browser hides
    responses from a page of any other origin.
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
