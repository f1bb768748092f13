"""The route of greetings."""

from fastapi import APIRouter

from pulsar_sidecar.api.schemas import Answer, Reason
from pulsar_sidecar.greeting.service import GreetingService


class GreetingAnswer(Answer):
    """A greeting."""

    text: str


def router(service: GreetingService) -> APIRouter:
    """The route; it changes nothing."""
    routes = APIRouter(tags=["greeting"], responses={"default": {"model": Reason}})

    @routes.get("/admin/v2/greeting/{name}")
    def greeting(name: str) -> GreetingAnswer:
        """Greet someone in the cluster's name."""
        return GreetingAnswer(text=service.greeting(name))

    return routes
