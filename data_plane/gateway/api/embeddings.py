"""OpenAI's embeddings: the caller's body read by an allow-list, the engine's body, and the engine's answer rebuilt from
known keys. Pure. Embeddings are copied as JSON and never decoded.
"""

from typing import Final

import msgspec

from core.contracts.usage import INPUTS_MAX
from data_plane.gateway.api import fields
from data_plane.gateway.api.fields import invalid
from data_plane.gateway.api.openai_request import BodyLimits, Call, Kind, empty_call, read_object
from data_plane.gateway.api.openai_response import Usage
from data_plane.gateway.api.token_counts import TokenCounts, reported_sequences

_ENCODINGS: Final = ("float", "base64")
_ENCODER: Final = msgspec.json.Encoder()


class EngineEmbeddings(msgspec.Struct):
    """The fields of an engine's answer that the gateway uses."""

    data: msgspec.Raw
    usage: Usage


_answer: Final = msgspec.json.Decoder(EngineEmbeddings)


def parse_embeddings(kind: Kind, raw: bytes, limits: BodyLimits) -> Call:
    """A body of ``/v1/embeddings``, every field checked. Raises InvalidRequest naming the first that is wrong."""
    body = read_object(raw, limits)
    call = empty_call(kind, body.pop("model", None))
    call.max_tokens = 0
    for name, value in body.items():
        match name:
            case _ if value is None:
                continue  # clients send null for what was not given
            case "input":
                call.prompts = fields.prompts(name, value, most=INPUTS_MAX)
            case "encoding_format":
                if value not in _ENCODINGS:
                    raise invalid(name, '"float" or "base64"')
                call.fields[name] = value
            case "dimensions":
                raise invalid(name, "absent, since the model's embeddings have one size")
            case "user":
                call.session = fields.text(name, value, chars_max=fields.SESSION_CHARS_MAX)
            case "service_tier":
                call.service_tier = fields.service_tier(name, value)
            case _:
                fields.check_neutral(name, value)
    if call.prompts is None:
        raise invalid("input", "a string or a list of strings")
    return call


def embeddings_body(call: Call, *, model: str, cache_salt: str) -> bytes:
    """The body for an engine."""
    return _ENCODER.encode({**call.fields, "model": model, "input": call.prompts, "cache_salt": cache_salt})


def decode_embeddings(raw: bytes) -> EngineEmbeddings:
    """Decode an answer. Raises msgspec.MsgspecError for anything else."""
    return _answer.decode(raw)


def embedding_counts(usage: Usage, *, report: bytes | str | None = None) -> TokenCounts:
    """The tokens of an answer. ``report`` is the middleware's on each text; without one, nothing is known to have come
    from the prefix cache.
    """
    reported = reported_sequences(report, output_min=0)
    return reported if reported is not None and reported.sequences else TokenCounts([(usage.prompt_tokens, 0)])


def embeddings_for_caller(
    answer: EngineEmbeddings, answered: TokenCounts, *, shown_name: str, service_tier: str | None = None
) -> bytes:
    """The answer with the caller's name for the model, the metered usage, and the tier if one is given."""
    usage = {"prompt_tokens": answered.input_tokens, "total_tokens": answered.total_tokens}
    shown = {"object": "list", "data": answer.data, "model": shown_name, "usage": usage}
    return _ENCODER.encode(shown if service_tier is None else shown | {"service_tier": service_tier})
