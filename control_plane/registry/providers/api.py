"""Admin routes of outside providers and their models."""

from typing import Annotated

import msgspec
from litestar import Controller, Response, get, patch, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page
from control_plane.registry.providers import service
from control_plane.registry.providers.rules import ProviderRules
from control_plane.registry.providers.schemas import (
    NewProvider,
    NewProviderModel,
    ProviderModelPatch,
    ProviderModelView,
    ProviderPatch,
    ProviderView,
)
from core.db import unit_of_work

_Name = Annotated[str, PathParameter(max_length=63, description="Name of the provider.")]
_Model = Annotated[str, PathParameter(max_length=63, description="Id of the model.")]


class AdminProviders(Controller):
    """Outside providers, and the models that they serve."""

    path = "/providers"
    tags = ("admin: providers",)

    @get(sync_to_thread=True)
    def list_providers(self, engine: NamedDependency[Engine]) -> Page[ProviderView]:
        """List all providers by name, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=service.every(session))

    @post(sync_to_thread=True)
    def create_provider(
        self,
        data: JSONBody[NewProvider],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
        provider_rules: NamedDependency[ProviderRules],
    ) -> Response[ProviderView]:
        """Register a provider. Its key is stored encrypted, and no answer contains it."""
        provider_rules.require_secret()
        provider_rules.check(data.url)
        return idempotent.run(lambda session: service.create(session, data, provider_rules.sealer, principal=principal))

    @patch("/{provider:str}", sync_to_thread=True)
    def change_provider(
        self,
        provider: _Name,
        data: JSONBody[ProviderPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        provider_rules: NamedDependency[ProviderRules],
    ) -> ProviderView:
        """Change where a provider is reached, its key, how many requests it gets at once and what it may cost."""
        provider_rules.require_secret()
        if data.url is not msgspec.UNSET:
            provider_rules.check(data.url)
        with unit_of_work(engine) as session:
            return service.change(session, provider, data, provider_rules.sealer, principal=principal)

    @get("/{provider:str}/models", sync_to_thread=True)
    def list_provider_models(self, provider: _Name, engine: NamedDependency[Engine]) -> Page[ProviderModelView]:
        """List the models of a provider by id, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=service.models(session, provider))

    @post("/{provider:str}/models", sync_to_thread=True)
    def add_provider_model(
        self,
        provider: _Name,
        data: JSONBody[NewProviderModel],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[ProviderModelView]:
        """Add a model. It becomes a base model, which plans give prices and tenants call by its id."""
        return idempotent.run(lambda session: service.add_model(session, provider, data, principal=principal))

    @patch("/{provider:str}/models/{model:str}", sync_to_thread=True)
    def change_provider_model(
        self,
        provider: _Name,
        model: _Model,
        data: JSONBody[ProviderModelPatch],
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
    ) -> ProviderModelView:
        """Change a model's name at the provider, what its tokens cost there, and the margin of its holds."""
        with unit_of_work(engine) as session:
            return service.change_model(session, provider, model, data, principal=principal)
