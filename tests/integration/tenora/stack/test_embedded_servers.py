"""The embedded servers are real servers that speak their protocols on loopback."""

import os
import time

import boto3
import httpx
import psycopg
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from pydantic import SecretStr

from adapters.object_store.multipart import FilePart
from adapters.object_store.s3 import Bucket
from adapters.object_store.upload_store import UploadStore
from adapters.settings import PART_BYTES_MIN, StoreSettings
from core.settings import S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import running, wait_until


def test_postgres_has_the_database(postgres_server):
    with psycopg.connect(postgres_server.replace("+psycopg", "")) as connection:
        assert connection.execute("SHOW server_version_num").fetchone()[0] >= "180000"


def test_valkey_keeps_an_append_only_file(redis):
    assert redis.config_get("appendonly") == {"appendonly": "yes"}


def test_a_replica_reads_what_workers_store_and_can_change_nothing(define):
    stack_programs = {program.name: program for program in define().programs()}

    def client(program: str, endpoint_of: str):
        env, place = stack_programs[program].env, stack_programs[endpoint_of].env["TENORA_S3_ENDPOINT"]
        return boto3.client(
            "s3", endpoint_url=place, region_name="us-east-1", aws_access_key_id=env["TENORA_S3_ACCESS_KEY"],
            aws_secret_access_key=env["TENORA_S3_SECRET_KEY"],
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )  # fmt: skip

    def refused(call, **parameters) -> int:
        with pytest.raises(ClientError) as refusal:
            call(**parameters)
        return refusal.value.response["ResponseMetadata"]["HTTPStatusCode"]

    place = {"Bucket": "tenora", "Key": "adapters/abc/adapter_model.safetensors"}
    with running(stack_programs["s3"]), running(stack_programs["s3-read"]):
        worker, replica = client("worker", "worker"), client("replica", "replica")
        worker.put_object(**place, Body=b"tensors")

        def kept() -> bytes:
            return worker.get_object(**place)["Body"].read()

        assert replica.get_object(**place)["Body"].read() == b"tensors"
        assert refused(replica.put_object, **place, Body=b"changed") >= 400
        assert refused(replica.put_object, **place | {"Key": "adapters/abc/new"}, Body=b"new") >= 400
        assert refused(replica.delete_object, **place) >= 400
        assert kept() == b"tensors"
        assert [each["Key"] for each in worker.list_objects_v2(Bucket="tenora")["Contents"]] == [place["Key"]]
        for caller, endpoint in (("replica", "worker"), ("worker", "replica")):
            assert refused(client(caller, endpoint).put_object, **place, Body=b"changed") == 403, "foreign credentials"
        assert kept() == b"tensors"


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
