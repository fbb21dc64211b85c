"""The rewriting of paths and queries that the router cannot match."""

import pytest

from control_plane.request_paths import RequestPaths, plain_lists


@pytest.mark.parametrize(
    ("query", "plain"),
    [
        (b"group_by[]=model&group_by[]=project_id", b"group_by=model&group_by=project_id"),
        (b"group_by%5B%5D=model&limit=5", b"group_by=model&limit=5"),
        (b"models=a[]=b", b"models=a[]=b"),
        (b"models=%5B%5D", b"models=%5B%5D"),
        (b"[]=x&a.b[]=y", b"[]=x&a.b[]=y"),
        (b"%ff[]=x", b"%ff[]=x"),
        (b"", b""),
        (b"flag", b"flag"),
    ],
)
def test_lists_lose_their_brackets_and_nothing_else_changes(query, plain):
    assert plain_lists(query) == plain


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("/api/v1/invoices/inv_1.pdf", "/api/v1/invoices/inv_1/pdf"),
        ("/api/v1/admin/invoices/inv_1.csv", "/api/v1/admin/invoices/inv_1/csv"),
        ("/api/v1/invoices/inv_1.pdf/x", "/api/v1/invoices/inv_1.pdf/x"),
        ("/api/v1/invoices/../inv.pdf", "/api/v1/invoices/../inv.pdf"),
        ("/api/v1/invoices/inv_1.exe", "/api/v1/invoices/inv_1.exe"),
        ("/api/v1/adapters/a.pdf", "/api/v1/adapters/a.pdf"),
        ("/api/v1/invoices/inv_1.pdf\n", "/api/v1/invoices/inv_1.pdf\n"),
    ],
)
async def test_the_ending_of_a_document_becomes_a_part_of_the_path(path, reached):
    seen = []

    async def app(scope, _receive, _send):
        seen.append(scope["path"])

    await RequestPaths(app)({"type": "http", "path": path, "query_string": b""}, None, None)
    assert seen == [reached]
