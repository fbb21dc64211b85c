"""Sending parts of files, against a store with typical failures (a stand-in on a socket)."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tenora.upload.transport import OutgoingPart, SendFailed, parts_of, send

BODY = bytes(range(256)) * 4096
BODY_BYTES = len(BODY)


@dataclass
class Store:
    url: str = ""
    answers: list[int] = field(default_factory=list)
    received: dict[str, bytes] = field(default_factory=dict)
    headers: list[dict] = field(default_factory=list)
    requests: int = 0


@pytest.fixture
def store():
    store = Store()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            store.requests += 1
            store.headers.append(dict(self.headers))
            status = store.answers.pop(0) if store.answers else 200
            if status == 200:
                store.received[self.path] = body
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    yield store
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def file(tmp_path):
    (tmp_path / "weights").write_bytes(BODY)
    return tmp_path / "weights"


def part(store, file, *, number=0, offset=0, size=BODY_BYTES) -> OutgoingPart:
    return OutgoingPart(
        path=file, offset_bytes=offset, size_bytes=size, url=f"{store.url}/{number}", headers={"x-amz-checksum": "abc"}
    )


def test_parts_arrive_whole_with_their_length_and_headers(store, file):
    sent = []
    half = len(BODY) // 2
    parts = [part(store, file, number=1, size=half), part(store, file, number=2, offset=half, size=half)]
    send(parts, sent.append)
    assert store.received == {"/1": BODY[:half], "/2": BODY[half:]}
    assert sum(sent) == len(BODY)
    for headers in store.headers:
        assert {name.lower(): value for name, value in headers.items()}["x-amz-checksum"] == "abc"
        assert "transfer-encoding" not in {name.lower() for name in headers}


def test_a_store_that_fails_for_a_while_is_retried_and_the_count_stays_right(store, file, monkeypatch):
    monkeypatch.setattr("tenora.upload.transport._BACKOFF_S", 0.01)
    store.answers = [503, 500]
    sent = []
    send([part(store, file)], sent.append)
    assert (store.requests, store.received["/0"], sum(sent)) == (3, BODY, len(BODY))


def test_a_refusal_is_final_and_says_why(store, file):
    store.answers = [403]
    with pytest.raises(SendFailed, match="weights: the store answered 403"):
        send([part(store, file)], lambda _: None)
    assert store.requests == 1


def test_a_store_that_stays_away_ends_the_attempts(file, monkeypatch):
    monkeypatch.setattr("tenora.upload.transport._BACKOFF_S", 0.01)
    nowhere = Store(url="http://127.0.0.1:9")
    with pytest.raises(SendFailed, match="tried 4 times"):
        send([part(nowhere, file)], lambda _: None)


def test_a_file_that_shrinks_is_reported(store, file):
    with pytest.raises(SendFailed, match="became shorter"):
        send([part(store, file, size=len(BODY) + 1)], lambda _: None)


def test_the_control_planes_answer_becomes_parts_in_its_order(tmp_path):
    part = {"number": 2, "offset_bytes": 5, "size_bytes": 3, "url": "u2", "headers": {}}
    uploads = [
        {"path": "a", "size_bytes": 2, "url": "u1", "headers": {"h": "1"}, "parts": []},
        {"path": "b", "size_bytes": 8, "url": None, "headers": {}, "parts": [part]},
    ]
    assert parts_of(tmp_path, uploads) == [
        OutgoingPart(path=tmp_path / "a", offset_bytes=0, size_bytes=2, url="u1", headers={"h": "1"}),
        OutgoingPart(path=tmp_path / "b", offset_bytes=5, size_bytes=3, url="u2", headers={}),
    ]
