"""The embedded servers are real: they speak their protocols on loopback."""

import boto3
import psycopg
import pytest


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
