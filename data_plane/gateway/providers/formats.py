"""Which wire format a provider speaks, and the body of a request for it."""

from typing import Final

import msgspec

from core.contracts.routes import ProviderKind, ProviderRoute
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.providers.anthropic_format import AnthropicFormat
from data_plane.gateway.providers.openai_format import CompatibleFormat, OpenAIFormat
from data_plane.gateway.providers.wire_format import WireFormat

_FORMATS: Final[dict[ProviderKind, type[WireFormat]]] = {
    "openai": OpenAIFormat,
    "anthropic": AnthropicFormat,
    "openai_compatible": CompatibleFormat,
}


def format_of(provider: ProviderRoute) -> type[WireFormat]:
    """The wire format of a provider."""
    return _FORMATS[provider.kind]


def provider_body(call: Call, provider: ProviderRoute, *, max_tokens: int) -> bytes:
    """The body for a provider."""
    return msgspec.json.encode(format_of(provider).body(call, model=provider.model, max_tokens=max_tokens))
