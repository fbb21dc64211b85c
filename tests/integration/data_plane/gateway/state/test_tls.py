"""TLS to the stores: the clients verify the server's certificate and name, and never fall back to plain text.

The embedded servers have no TLS, so a TLS proxy stands in front of Valkey and of the S3 server.
"""

import asyncio
import contextlib
import datetime as dt
import functools
import ipaddress
import ssl
from pathlib import Path

import pytest
import sqlalchemy as sa
from botocore.exceptions import SSLError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.asyncio import Redis
from redis.exceptions import RedisError

from adapters.object_store.s3 import Bucket, StoreUnavailable, translated
from adapters.settings import StoreSettings
from core import db
from core.settings import PostgresSettings
from data_plane.gateway.state.redis_connection import RedisConnection


def write_certificate(folder: Path, host: str) -> Path:
    """A self-signed certificate for ``host``, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = dt.datetime.now(dt.UTC)
    try:
        subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{host}.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file


@contextlib.asynccontextmanager
async def tls_proxy(certificate: Path, to_port: int):
    """The port of a TLS server that passes everything on to a local port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(copy(reader, behind_writer), copy(behind_reader, writer))

    serving: set[asyncio.Task | None] = set()
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*serving)


@contextlib.asynccontextmanager
async def clients_of(url: str):
    """Calls of both clients that a gateway has."""
    connection = RedisConnection(url, connect_s=20, stalled_s=20, pending_max=10)
    try:
        async with Redis.from_url(url) as client:
            yield client.ping, functools.partial(connection.call, "PING")
    finally:
        await connection.close()


async def ping(url: str) -> list[object]:
    async with clients_of(url) as calls:
        return [await call() for call in calls]


async def refuse(url: str) -> None:
    """Neither client connects."""
    async with clients_of(url) as calls:
        for call in calls:
            with pytest.raises((RedisError, OSError)):
                await call()


async def test_redis_is_reached_over_tls_with_a_private_authority(redis_server, tmp_path):
    certificate = write_certificate(tmp_path, "127.0.0.1")
    plain_port = redis_server.rsplit(":", 1)[1].split("/")[0]
    async with tls_proxy(certificate, int(plain_port)) as port:
        url = redis_server.replace("redis://", "rediss://").replace(f":{plain_port}", f":{port}")
        assert await ping(f"{url}?ssl_ca_certs={certificate}") == [True, b"PONG"]
        await refuse(url)
        await refuse(f"{url}?ssl_ca_certs={write_certificate(tmp_path, 'another.example')}")


async def test_redis_under_another_name_than_its_certificate_is_refused(redis_server, tmp_path):
    certificate = write_certificate(tmp_path, "redis.example.com")
    plain_port = redis_server.rsplit(":", 1)[1].split("/")[0]
    async with tls_proxy(certificate, int(plain_port)) as port:
        url = redis_server.replace("redis://", "rediss://").replace(f":{plain_port}", f":{port}")
        await refuse(f"{url}?ssl_ca_certs={certificate}")


async def test_s3_is_reached_over_tls_with_a_private_authority_and_no_other(s3_settings, tmp_path, monkeypatch):
    """As every process does it: the authority is in ``AWS_CA_BUNDLE``."""
    certificate = write_certificate(tmp_path, "127.0.0.1")
    plain_port = int(s3_settings.s3_endpoint.rsplit(":", 1)[1])

    def call(port: int) -> None:
        """Write with the client of the calls and read with that of the bodies."""
        settings = s3_settings.model_copy(update={"s3_endpoint": f"https://127.0.0.1:{port}"})
        bucket, key = Bucket(settings, StoreSettings(store_attempts_max=1)), "tls/body"
        with translated(key):
            bucket.client.put_object(Bucket=bucket.name, Key=key, Body=b"body")
        with translated(key):
            assert bucket.reader.get_object(Bucket=bucket.name, Key=key)["Body"].read() == b"body"
        for each in (bucket.client, bucket.reader):
            each.close()

    async with tls_proxy(certificate, plain_port) as port:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        await asyncio.to_thread(call, port)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(write_certificate(tmp_path, "another.example")))
        with pytest.raises(StoreUnavailable) as refused:
            await asyncio.to_thread(call, port)
        assert isinstance(refused.value.__cause__, SSLError)
        monkeypatch.delenv("AWS_CA_BUNDLE")
        with pytest.raises(StoreUnavailable) as refused:
            await asyncio.to_thread(call, port)
        assert isinstance(refused.value.__cause__, SSLError)


async def test_s3_under_another_name_than_its_certificate_is_refused(s3_settings, tmp_path, monkeypatch):
    certificate = write_certificate(tmp_path, "s3.example.com")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    async with tls_proxy(certificate, int(s3_settings.s3_endpoint.rsplit(":", 1)[1])) as port:
        settings = s3_settings.model_copy(update={"s3_endpoint": f"https://127.0.0.1:{port}"})
        bucket = Bucket(settings, StoreSettings(store_attempts_max=1))
        with pytest.raises(StoreUnavailable) as refused:
            await asyncio.to_thread(bucket.head, "tls/body")
        assert isinstance(refused.value.__cause__, SSLError)
        bucket.client.close()


def test_postgres_without_tls_is_refused_where_tls_is_required(postgres_settings):
    dsn = f"{postgres_settings.postgres_dsn}?sslmode=verify-full"
    engine = db.connect(PostgresSettings(postgres_dsn=dsn))
    with pytest.raises(sa.exc.OperationalError, match="SSL"):
        engine.connect()
    engine.dispose()
