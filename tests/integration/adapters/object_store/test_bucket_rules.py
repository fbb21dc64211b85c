"""The CORS rules of a bucket, and why it cannot be read: against a stand-in on a socket that stores the rules it
receives and refuses as AWS does, and against a real server.
"""

import threading
import xml.etree.ElementTree as ET
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from core.errors import Unavailable
from core.settings import S3Settings

ORIGINS = ("https://console.example.com", "http://localhost:5173")


class Rules:
    """The rules that the stand-in received, and its answer to new rules."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.refusal: tuple[int, str] | None = None


@pytest.fixture
def rules():
    return Rules()


@pytest.fixture
def bucket(rules):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(200)

        def do_GET(self):
            self.answer(*(rules.refusal or (404, "NoSuchKey")))

        def do_PUT(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            assert self.path.endswith("?cors"), self.path
            rules.bodies.append(body)
            self.answer(*(rules.refusal or (200, "")))

        def answer(self, status: int, code: str = "") -> None:
            text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b""
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings = S3Settings(
        s3_endpoint=f"http://127.0.0.1:{server.server_port}", s3_access_key="a", s3_secret_key=SecretStr("b")
    )
    yield Bucket(settings, StoreSettings(store_attempts_max=1))
    server.shutdown()
    thread.join()
    server.server_close()


def said(body: bytes, name: str) -> list[str]:
    return [each.text for each in ET.fromstring(body).iter() if each.tag.rpartition("}")[2] == name]


def test_the_bucket_allows_uploads_with_a_checksum_from_exactly_these_origins(bucket, rules):
    bucket.ensure(cors_origins=ORIGINS)
    (body,) = rules.bodies
    assert said(body, "AllowedOrigin") == list(ORIGINS)
    assert said(body, "AllowedMethod") == ["PUT"]
    assert set(said(body, "AllowedHeader")) == {"content-type", "x-amz-checksum-sha256"}


def test_without_origins_the_buckets_rules_are_not_touched(bucket, rules):
    bucket.ensure()
    assert rules.bodies == []


def test_a_server_without_cors_rules_is_accepted_and_one_that_forbids_them_is_an_error(bucket, rules, capfd):
    rules.refusal = (501, "NotImplemented")
    bucket.ensure(cors_origins=ORIGINS)
    assert "has no CORS rules" in capfd.readouterr().out
    rules.refusal = (403, "AccessDenied")
    with pytest.raises(Unavailable):
        bucket.ensure(cors_origins=ORIGINS)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "NoSuchKey"), None),
        ((404, "NoSuchBucket"), "correct TENORA_S3_BUCKET"),
        ((403, "InvalidAccessKeyId"), "correct TENORA_S3_ACCESS_KEY"),
        ((403, "SignatureDoesNotMatch"), "correct TENORA_S3_ACCESS_KEY"),
        ((400, "ExpiredToken"), "correct TENORA_S3_ACCESS_KEY"),
        ((403, "AccessDenied"), "allow s3:GetObject"),
        ((400, "AuthorizationHeaderMalformed"), "check TENORA_S3_REGION"),
        ((503, "SlowDown"), "answers with errors (SlowDown)"),
        ((500, "InternalError"), "answers with errors (InternalError)"),
    ],
)
def test_a_refusal_to_read_says_what_to_correct(bucket, rules, answer, said):
    rules.refusal = answer
    why = bucket.why_unreadable()
    assert why is None if said is None else (said in why and answer[1] in why + "NoSuchBucket"), why


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"s3_bucket": "not-there"}, "has no bucket 'not-there'"),
        ({"s3_secret_key": SecretStr("wrong")}, "refused the credentials (SignatureDoesNotMatch)"),
        ({"s3_access_key": "stranger"}, "refused the credentials (InvalidAccessKeyId)"),
        ({"s3_endpoint": "http://127.0.0.1:9"}, "http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_a_real_server_is_readable_or_says_why_not(s3_settings, changed, said):
    Bucket(s3_settings, StoreSettings()).ensure()
    why = Bucket(s3_settings.model_copy(update=changed), StoreSettings()).why_unreadable()
    assert why is None if said is None else said in why, why
