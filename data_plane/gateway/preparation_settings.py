"""Bounds on what is done with a request before any limit is asked: reading its body, checking, compiling and counting.

They are part of the gateway's environment, which is settings.py.
"""

from pydantic import Field

from core.settings import Fragment


class PreparationSettings(Fragment):
    """What a request may cost before it costs its tenant anything."""

    body_max_bytes: int = Field(default=1_048_576, ge=1024, description="Bytes a request body may have.")
    body_s: float = Field(default=30, gt=0, description="How long a request body may take to arrive.")
    json_depth_max: int = Field(default=24, ge=4, description="Nesting of a request body.")
    parse_inline_max_bytes: int = Field(
        default=65_536, ge=0, description="Bodies up to here are read and checked without a thread."
    )
    tenant_preparing_max: int = Field(
        default=256, ge=1, description="Requests of one tenant that may be read, checked and counted at a time."
    )
    tenant_unpaid_per_second: float = Field(
        default=200,
        gt=0,
        le=1_000_000,
        description="Requests of one tenant that take from no limit (refused ones, counts, listings) which one process "
        "answers in a second; five seconds' worth at once.",
    )
    messages_max: int = Field(default=256, ge=1, description="Messages in one chat request.")

    tokenise_inline_max_bytes: int = Field(
        default=4096, ge=0, description="Bodies up to here are counted without a thread."
    )
    tokeniser_load_s: float = Field(default=2, gt=0, description="How long reading a tokenizer from Redis may take.")
    tokenise_threads: int = Field(default=2, ge=1, description="Threads that read long bodies and count long prompts.")
    tokenise_waiting_max: int = Field(default=256, ge=1, description="Long bodies and prompts that may wait for them.")
    tokenise_tenant_waiting_max: int = Field(
        default=64, ge=1, description="Long bodies and prompts of one tenant that may wait for them."
    )
    tokenise_kept_max_bytes: int = Field(
        default=16_777_216,
        ge=0,
        description="Memory for messages whose token counts are remembered, for each tokenizer.",
    )
    tokenisers_max: int = Field(default=16, ge=1, description="Tokenizers kept in memory.")

    schema_compile_s: float = Field(default=5, gt=0, le=60, description="How long compiling one JSON Schema may take.")
    schema_start_s: float = Field(default=30, gt=0, description="How long the schema compiler may take to start.")
    schema_memory_bytes: int = Field(
        default=1 << 30, ge=256 << 20, description="Memory of the process that compiles schemas."
    )
    schema_compiled_max_bytes: int = Field(default=33_554_432, ge=1024, description="What one schema may compile to.")
    schema_waiting_max: int = Field(default=64, ge=1, description="Requests whose new schemas may wait to be compiled.")
    schemas_per_minute: int = Field(
        default=120, ge=1, description="New schemas that one process compiles for a tenant in a minute."
    )
    schemas_kept_max: int = Field(default=4096, ge=1, description="Schemas whose verdict is remembered.")
