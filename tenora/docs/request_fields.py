"""The reference page of inference requests: what becomes of every field, from the tables that gateways decide by."""

import json
from typing import Final

from core.contracts.json_output import JSON_SPACES_MAX
from data_plane.gateway.api import anthropic_request, fields, openai_messages, schema_constraints, tool_schemas
from data_plane.gateway.settings import GatewaySettings

_INTRO: Final = """# Inference requests

`POST /v1/chat/completions` and `POST /v1/completions` take OpenAI's fields, `POST /v1/messages` and `POST
/v1/messages/count_tokens` Anthropic's; the official SDKs work with the gateway's address as their base URL. Keys go
into `Authorization: Bearer` or, for messages, into `x-api-key`. `GET /v1/models` answers a request with the header
`anthropic-version` in Anthropic's format. What a request says is rebuilt from these tables before an engine sees it. A
field of no table is refused with 400 `unknown_parameter` that names it by its path: `tools[0].cache_control`, or
in Anthropic's words `tools.0.parameters`. `null` is the same as absent for every field, at every depth.
"""
_MESSAGES: Final = """
## Messages

Clients send earlier answers back, also those of other servers. Only these members of OpenAI's messages reach a model:
`role`, `content` (a string or text parts), `name`, `tool_calls` (`id`, `function.name`, `function.arguments`) and
`tool_call_id`. What an assistant said as a `refusal`, in a part or beside the content, is text of its message.

- Ignored at every depth of a message, since no prompt contains them: {marks}; and an assistant's parts of type
  {thoughts}.
- Any other member is ignored where it is empty or false, and else refused by its path: a template could render it.
- `audio` and `function_call` of an earlier answer are refused with `unsupported_parameter`, images and other parts with
  `unsupported_content`.

A message has at most {parts:,} parts and {calls} tool calls.

## Tools

All tools of a request, with their names, descriptions and schemas, have at most {tools:,} bytes of JSON
(`TENORA_TOOLS_MAX_BYTES`); there is no limit on their number. One schema has at most {schema:,} bytes, {depth} levels,
{nodes:,} nodes and {enum:,} values in an enum. A request with new tools waits until they compile, as one grammar: a
second for thirty tools and a vocabulary of 49,152, four for 128; in proportion more for a larger vocabulary.

The chat template of a base model has to show tools to the model. `GET /v1/models` says so for each model:
`capabilities.tools`. Where it does not, tools (unless `tool_choice` is `none`), tool calls and results of tools are
refused with 400 `tools_unsupported`.

## Constraints of a schema

The engine's grammar enforces a schema while the answer is written. It cannot enforce all of JSON Schema. A schema of
`response_format` or `output_config`, and of a tool with `"strict": true`, is refused with 400 `schema_invalid` where it
demands more; `param` is the path of the keyword. With `"strict": false`, and in a tool without `strict`, such a
constraint is ignored, unless the schema does not compile with it. White space between two tokens of JSON is at most
{spaces} characters.

- Not enforced: {unenforced}, `uniqueItems`, an `allOf` of several schemas, a `oneOf` whose schemas may allow the same
  value, `required` names that `properties` lacks, `multipleOf` of fractions or beside a bound, and what stands beside
  `$ref`, `const`, `enum`, `anyOf`, `oneOf` or `allOf`. `minLength`, `pattern` and the like need a `type`.
- A `pattern` has to match the whole string. It cannot have lookaround, backreferences, `\\b`, `\\p`, anchors inside, or
  characters that JSON escapes outside of a class. `minLength` and `maxLength` are not enforced beside it or a `format`.
- Formats: {formats}. {any_text} are accepted and allow any string.
- Other keywords, such as `title`, `default`, `examples` and `discriminator`, are annotations.
"""
_KEYS: Final = """
## Idempotency-Key

With the header `Idempotency-Key` (1 to 255 printable ASCII characters) a POST that is sent again is answered with the
first answer, byte for byte, also where that is a stream; it runs once, is charged once and counts once against limits.
The answer says `idempotent-replayed: true`.

- Keys belong to the API key that sent them. The same key with another body or path is a 422 `idempotency_key_reused`.
- While the first request runs, the second is a 409 `request_in_progress`, which SDKs try again by themselves.
- Whole good answers of up to {answer} bytes are kept for {expires} hours, and of each tenant the newest {kept}. A
  larger one is not kept and not run again either: 409 `idempotent_answer_not_kept`.
- A request that failed, or whose caller hung up before the end, is not replayed: sent again it runs again, and what
  the first one had produced until then stays charged.
- Where Redis cannot remember the key the request is refused with 503 `idempotency_unavailable` and does not run. A
  gateway that is killed leaves its keys in flight for {lease} seconds; an answer that it had charged but not kept by
  then may be run again.
"""


def requests_page() -> str:
    """The page's text."""
    taken = fields.ACCEPTED | fields.SAMPLED
    return (
        _INTRO
        + _table("OpenAI's fields that are taken", "values, meaning", taken)
        + _table("OpenAI's fields that are accepted and do nothing", "why", fields.IGNORED)
        + _refused()
        + _MESSAGES.format(**_message_bounds())
        + _table("Anthropic's accepted fields", "values, meaning", anthropic_request.ACCEPTED)
        + _table("Anthropic's fields that are accepted and do nothing", "why", anthropic_request.IGNORED)
        + "\nRefused by name, unless the value asks for nothing: "
        + ", ".join(f"`{name}`" for name in sorted(anthropic_request.REFUSED)) + ".\n"
        + _KEYS.format(**_bounds())
    )  # fmt: skip


def _table(title: str, head: str, rows: dict[str, str]) -> str:
    lines = "".join(f"| `{name}` | {words} |\n" for name, words in sorted(rows.items()))
    return f"\n## {title}\n\n| field | {head} |\n|---|---|\n{lines}"


def _refused() -> str:
    """Refused fields, with the values by which they ask for nothing."""
    neutral = {name: ", ".join(f"`{json.dumps(one)}`" for one in values) for name, values in fields.NEUTRAL.items()}
    neutral["add_special_tokens"] = "`false` in chat, `true` in completions"
    rows = {name: f"{neutral.get(name, '')} | {why}" for name, why in fields.REFUSED.items()}
    head = "accepted without effect | why another value is refused: 400 `unsupported_parameter`"
    return _table("Fields that are refused by name", head, rows).replace("|---|---|", "|---|---|---|")


def _message_bounds() -> dict[str, str | int]:
    return {
        "marks": ", ".join(f"`{name}`" for name in sorted(openai_messages.MARKS)),
        "thoughts": ", ".join(f"`{name}`" for name in sorted(openai_messages.THOUGHTS)),
        "parts": openai_messages.PARTS_MAX,
        "calls": openai_messages.TOOL_CALLS_MAX,
        "tools": GatewaySettings.model_fields["tools_max_bytes"].default,
        "schema": tool_schemas.SCHEMA_BYTES_MAX,
        "depth": tool_schemas.SCHEMA_DEPTH_MAX,
        "nodes": tool_schemas.SCHEMA_NODES_MAX,
        "enum": tool_schemas.SCHEMA_ENUM_MAX,
        "spaces": JSON_SPACES_MAX,
        "unenforced": ", ".join(f"`{name}`" for name in schema_constraints.UNENFORCED),
        "formats": ", ".join(f"`{name}`" for name in sorted(schema_constraints.FORMATS)),
        "any_text": ", ".join(f"`{name}`" for name in sorted(schema_constraints.ANY_TEXT)),
    }


def _bounds() -> dict[str, str]:
    """The defaults that the words speak of."""
    default = {name: field.default for name, field in GatewaySettings.model_fields.items()}
    return {
        "answer": f"{default['idempotency_answer_max_bytes']:,}",
        "expires": f"{default['idempotency_expires_s'] // 3600}",
        "kept": f"{default['idempotency_answers_max']}",
        "lease": f"{default['idempotency_lease_s']}",
    }
