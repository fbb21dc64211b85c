"""The embedded servers are real servers that speak their protocols on loopback."""

import os
import time

import boto3
import httpx
import psycopg
import pytest
from pydantic import SecretStr

from adapters.object_store.multipart import FilePart
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.settings import PART_BYTES_MIN, StoreSettings
from core.settings import S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import wait_until


def test_postgres_has_the_database(postgres_server):
    with psycopg.connect(postgres_server.replace("+psycopg", "")) as connection:
        assert connection.execute("SHOW server_version_num").fetchone()[0] >= "180000"


def test_valkey_keeps_an_append_only_file(redis):
    assert redis.config_get("appendonly") == {"appendonly": "yes"}


def test_s3_refuses_a_wrong_secret(s3_settings):
    client = boto3.client(
        "s3",
        endpoint_url=s3_settings.s3_endpoint,
        aws_access_key_id="tests",
        aws_secret_access_key="wrong",
        region_name="us-east-1",
    )
    with pytest.raises(client.exceptions.ClientError) as refusal:
        client.list_objects_v2(Bucket="tenora")
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_a_killed_s3_loses_multipart_uploads_and_their_leftovers_are_removed(tmp_path):
    port, key = free_port(), "uploads/rev_1/adapter_model.safetensors"
    part = FilePart(number=1, offset_bytes=0, size_bytes=PART_BYTES_MIN)

    def start():
        server = embedded_servers.s3(
            tmp_path / "s3", tmp_path, port=port, access_key="tests", secret_key="s" * 16, bucket="tenora"
        )
        process = server.program.start()
        wait_until(server.program.ready, what="s3")
        settings = S3Settings(s3_endpoint=server.url, s3_access_key="tests", s3_secret_key=SecretStr("s" * 16))
        return process, UploadStore(Bucket(settings, StoreSettings()))

    def left():
        return list((tmp_path / "s3").rglob(".rclone_temp_*"))

    process, uploads = start()
    upload_id = uploads.open_multipart(key)
    url = uploads.presign_part(key, upload_id, part, expires_s=60).url
    assert httpx.put(url, content=bytes(PART_BYTES_MIN)).status_code == 200
    process.kill()
    process.wait()
    (cut,) = left()
    process, uploads = start()
    try:
        assert uploads.list_parts(key, upload_id) is None
        assert left() == [cut], "it may be from today"
        three_days_ago = time.time() - 3 * 86_400
        os.utime(cut, (three_days_ago, three_days_ago))
    finally:
        process.kill()
        process.wait()
    process, uploads = start()
    process.kill()
    process.wait()
    assert left() == []
