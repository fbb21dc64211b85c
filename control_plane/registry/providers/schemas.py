"""Wire types of outside providers and their models."""

from datetime import datetime
from typing import Annotated

import msgspec

from adapters.base_model_spec import BaseModelId
from core import fields
from core.contracts.routes import ProviderKind
from core.fields import about

_Name = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}(?!\n)$"), about("Name of the provider, chosen by you.")
]
_Kind = Annotated[
    ProviderKind, about("Wire format: openai, anthropic, or openai_compatible for any other server with OpenAI's.")
]
_Url = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=2_048)],
    about(
        "URL of the provider's API up to its version; it begins with https, or names a host that the operator allows."
    ),
]
_Key = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=1_024, pattern=r"^[!-~]+(?!\n)$")],
    about("API key at the provider. It is stored encrypted and never shown."),
]
_RequestsMax = Annotated[
    Annotated[int, msgspec.Meta(ge=0, le=10_000)],
    about("Requests of each model that one gateway process sends at once; 0 sends none."),
]
_Ceiling = Annotated[
    Annotated[int, msgspec.Meta(ge=0, le=10**18)] | None,
    about("Nanodollars that the provider may cost in a UTC month; null for no ceiling."),
]
_Model = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=fields.ONE_LINE)],
    about("Name of the model at the provider, such as gpt-4o-mini."),
]
_Margin = Annotated[
    Annotated[int, msgspec.Meta(ge=0, le=100)],
    about("Percent that are added to the counted prompt tokens while a request runs."),
]
_Nanos = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Input = Annotated[_Nanos, about("What the provider charges for a prompt token, in nanodollars per token.")]
_Cached = Annotated[_Nanos, about("What the provider charges for a cached prompt token, in nanodollars per token.")]
_Output = Annotated[_Nanos, about("What the provider charges for a generated token, in nanodollars per token.")]
_CountsLike = Annotated[
    Annotated[str, msgspec.Meta(max_length=63)],
    about("Id of the base model whose tokenizer and chat template count the prompts."),
]


class NewProvider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An outside provider. Its name and its kind never change."""

    name: _Name
    kind: _Kind
    url: _Url
    key: _Key
    requests_max: _RequestsMax = 32
    spend_nanos_per_month: _Ceiling = None


class ProviderPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a provider. An omitted field keeps its value."""

    url: _Url | msgspec.UnsetType = msgspec.UNSET
    key: _Key | msgspec.UnsetType = msgspec.UNSET
    requests_max: _RequestsMax | msgspec.UnsetType = msgspec.UNSET
    spend_nanos_per_month: _Ceiling | msgspec.UnsetType = msgspec.UNSET


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """An outside provider, without its key."""

    id: Annotated[str, fields.ID]
    name: _Name
    kind: _Kind
    url: _Url
    requests_max: _RequestsMax
    spend_nanos_per_month: _Ceiling
    created_at: Annotated[datetime, fields.CREATED_AT]


class NewProviderModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a provider, which becomes a base model under ``id``. Its id, its context and how its prompts are
    counted never change.
    """

    id: Annotated[BaseModelId, fields.ID]
    model: _Model
    counts_like: _CountsLike
    context_tokens: Annotated[Annotated[int, msgspec.Meta(ge=1, le=1 << 24)], fields.CONTEXT_TOKENS]
    input_nanos: _Input
    cached_input_nanos: _Cached
    output_nanos: _Output
    margin_percent: _Margin = 20


class ProviderModelPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a provider's model. An omitted field keeps its value."""

    model: _Model | msgspec.UnsetType = msgspec.UNSET
    input_nanos: _Input | msgspec.UnsetType = msgspec.UNSET
    cached_input_nanos: _Cached | msgspec.UnsetType = msgspec.UNSET
    output_nanos: _Output | msgspec.UnsetType = msgspec.UNSET
    margin_percent: _Margin | msgspec.UnsetType = msgspec.UNSET


class ProviderModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a provider. ``base_model`` is its id in requests, prices and reports."""

    base_model: Annotated[str, fields.BASE_MODEL]
    model: _Model
    counts_like: _CountsLike
    input_nanos: _Input
    cached_input_nanos: _Cached
    output_nanos: _Output
    margin_percent: _Margin
