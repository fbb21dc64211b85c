"""The engine's command line and environment follow from the settings; secrets are never on the command line."""

import json
from pathlib import Path

from botocore.credentials import ContainerProvider
from pydantic import SecretStr

from data_plane.engine.engine_command import engine_argv, engine_env
from data_plane.engine.settings import ReplicaSettings
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

MODEL = Path("/")
SETTINGS = ReplicaSettings(
    model_path=MODEL,
    engine_key=SecretStr("very-secret-engine-key"),
    engine_slots=8,
    snapshot_public_keys=PUBLIC_KEYS,
)


def test_the_key_is_in_the_environment_and_not_on_the_command_line():
    assert "very-secret-engine-key" not in " ".join(engine_argv(SETTINGS, MODEL, "cpu"))
    assert engine_env(SETTINGS, "cpu", {})["VLLM_API_KEY"] == "very-secret-engine-key"


def test_the_middleware_and_the_lora_module_list_are_always_set():
    argv = engine_argv(SETTINGS, MODEL, "cpu")
    assert argv[argv.index("--middleware") + 1] == "data_plane.engine.middleware.middleware.EngineMiddleware"
    modules = argv[argv.index("--lora-target-modules") + 1 :][:7]
    assert modules == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def test_an_engine_for_embeddings_pools_instead_of_generating():
    embeds = engine_argv(SETTINGS.model_copy(update={"engine_task": "embed"}), MODEL, "cpu")
    assert embeds[embeds.index("--runner") : embeds.index("--runner") + 4] == [
        "--runner",
        "pooling",
        "--convert",
        "embed",
    ]
    assert "--runner" not in engine_argv(SETTINGS, MODEL, "cpu")


def test_the_engine_uses_the_tool_parser_and_the_schema_compiler_of_the_gateways():
    argv = engine_argv(SETTINGS, MODEL, "cpu")
    assert "--enable-auto-tool-choice" in argv
    assert argv[argv.index("--tool-call-parser") + 1] == "hermes"
    assert json.loads(argv[argv.index("--structured-outputs-config") + 1]) == {"backend": "xgrammar"}


def test_host_memory_never_holds_fewer_adapters_than_slots():
    argv = engine_argv(SETTINGS.model_copy(update={"engine_memory_adapters": 1}), MODEL, "cpu")
    assert int(argv[argv.index("--max-cpu-loras") + 1]) == 8


def test_compiled_code_is_kept_from_one_start_to_the_next():
    folder = Path(engine_env(SETTINGS, "cpu", {})["NUMBA_CACHE_DIR"])
    assert SETTINGS.run_dir not in (folder, *folder.parents)
    assert engine_env(SETTINGS, "cpu", {"NUMBA_CACHE_DIR": "/mine"})["NUMBA_CACHE_DIR"] == "/mine"


def test_nothing_is_compiled_in_a_step_on_the_cpu():
    assert engine_env(SETTINGS, "cpu", {})["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in engine_env(SETTINGS, "gpu", {})


def test_nothing_is_fetched_or_reported_to_the_outside():
    env = engine_env(SETTINGS, "cpu", {})
    assert env["HF_HUB_OFFLINE"] == env["VLLM_NO_USAGE_STATS"] == env["DO_NOT_TRACK"] == "1"


def test_a_gpu_engine_sizes_its_own_cache_and_compiles():
    assert "--enforce-eager" not in engine_argv(SETTINGS, MODEL, "gpu")
    assert "VLLM_CPU_KVCACHE_SPACE" not in engine_env(SETTINGS, "gpu", {})


def test_the_engine_learns_no_secret_of_other_processes():
    secrets = {
        "TENORA_POSTGRES_DSN": "postgres://", "TENORA_REDIS_URL": "redis://", "TENORA_KEY_PEPPER": "pepper",
        "TENORA_SALT_SECRET": "salt", "TENORA_STRIPE_KEY": "sk", "AWS_SECRET_ACCESS_KEY": "aws",
        "GITHUB_TOKEN": "gh", "DATABASE_URL": "postgres://",
    }  # fmt: skip
    needed = {
        "PATH": "/bin", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2", "PYTHONPATH": "/x",
        "TENORA_ENGINE_KEY": "key", "TENORA_S3_ENDPOINT": "http://s3", "TENORA_S3_ACCESS_KEY": "a",
        "AWS_CA_BUNDLE": "/ca.pem", "TENORA_CACHE_DIR": "/cache", "TENORA_LOG_LEVEL": "info", "TENORA_HOME": "/home",
    }  # fmt: skip
    env = engine_env(SETTINGS, "gpu", secrets | needed)
    assert not env.keys() & secrets.keys()
    assert {name: env[name] for name in needed} == needed


def test_an_engine_reads_the_bucket_by_its_replicas_own_role():
    """The names are those by which boto3 finds a role; an access key of other programs is not among them."""
    pod = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/replica", "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token"}
    task = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/run/task-token",
    }
    assert set(task) == {ContainerProvider.ENV_VAR_FULL, ContainerProvider.ENV_VAR_AUTH_TOKEN_FILE}
    env = engine_env(SETTINGS, "gpu", pod | task | {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"})
    assert {name: value for name, value in env.items() if name.startswith("AWS_")} == pod | task
