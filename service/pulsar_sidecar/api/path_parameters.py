"""The parts of Pulsar's paths, the same in every route."""

from typing import Annotated

from fastapi import Path

Tenant = Annotated[str, Path(description="Tenant, URL-encoded.", examples=["public"])]
Cluster = Annotated[str, Path(description="Cluster of a V1 namespace, URL-encoded.", examples=["standalone"])]
Namespace = Annotated[str, Path(description="Namespace without its tenant, URL-encoded.", examples=["default"])]
Topic = Annotated[str, Path(description="The topic's own name, URL-encoded.", examples=["orders"])]
Subscription = Annotated[str, Path(description="The subscription, URL-encoded.", examples=["billing"])]
