"""A protocol of somebody else's: an extension gives its row, a worker's endpoint names it, and it is called and examined like our own."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from activities.providers import Providers, examine
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import Connections, Endpoint, ModelFault, ModelProtocol, ModelReply, ModelRequest, Step
from gradeloop.extensions import Extension
from gradeloop.settings.endpoints import PROTOCOLS, EndpointSettings
from tests.rig.extensions import install

ECHO = ModelProtocol("echo", f"{__name__}:connect", log_probs=False)
ROWS = [ECHO]


class Echo:
    """Answers with the prompt and the endpoint's key."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Return the last message."""
        text = f"{request.messages[-1].content} at {self._endpoint.base_url} with {self._endpoint.key}"
        return ModelReply(Message(role="assistant", content=text), Usage(input=3, output=2, calls=1))

    async def models(self) -> tuple[str, ...]:
        """Return one model."""
        return ("parrot",)


def connect(connections: Connections, endpoint: Endpoint) -> Echo:
    """Return the adapter."""
    assert connections.memory(endpoint) == {}
    return Echo(endpoint)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Return a worker's environment with an endpoint of the extension's protocol."""
    install(monkeypatch, PROTOCOLS, Extension("acme", kinds={"protocols": f"{__name__}:ROWS"}))
    table = EndpointSettings(protocol="echo", base_url="http://127.0.0.1:9/v1", key="SHOP_KEY")
    return Environment.read({"SHOP_KEY": "shop-secret-1"}, {"shop": table})


def asked(model: str) -> ModelRequest:
    step = Step(role="generator")
    return ModelRequest(spec=ModelSpec(id=model), step=step, messages=(Message(role="user", content="hello"),))


async def test_a_model_is_called_by_the_protocol_of_an_extension(shop: Environment) -> None:
    reply = await Providers(shop).complete(asked("shop:parrot"))
    assert (reply.message.content, reply.usage.output) == ("hello at http://127.0.0.1:9/v1 with shop-secret-1", 2)


async def test_doctor_examines_an_endpoint_of_that_protocol(shop: Environment) -> None:
    report = await examine(shop)
    assert [(key.provider, key.verdict) for key in report.keys] == [("shop", "accepted")]


def test_a_worker_refuses_what_that_protocol_does_not_give(shop: Environment) -> None:
    with pytest.raises(ModelFault, match="its API does not say how probable its tokens are"):
        Providers(shop).refuse_without_logprobs(ModelSpec(id="shop:parrot"))


def test_a_protocol_whose_package_is_missing_names_what_installs_it(shop: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROTOCOLS, "rows", {**PROTOCOLS.rows, "echo": replace(ECHO, package="acme_sdk", install="acme-sdk>=2")})
    with pytest.raises(ModelFault, match=r"run: pip install 'acme-sdk>=2'"):
        Providers(shop).check(ModelSpec(id="shop:parrot"))


def test_a_protocol_that_nobody_gives_is_refused_with_those_that_there_are(shop: Environment) -> None:
    assert shop.protocol("shop") == "echo"
    with pytest.raises(ValidationError, match=r"'anthropic', 'openai_responses', 'openai_chat', 'google' or 'echo'"):
        EndpointSettings(protocol="eco", base_url="http://h")
