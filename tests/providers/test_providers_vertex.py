"""Gemini on Vertex AI: the machine's own credentials, a project's path, and no key."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelRequest, Step

ANSWER = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Paris."}]}, "finishReason": "STOP"}]}


def credentials(folder: Path, token_uri: str) -> Path:
    """Write the file of a service account whose tokens come from this address."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    account = {"type": "service_account", "project_id": "p", "private_key": pem, "client_email": "a@b", "token_uri": token_uri}
    (folder / "account.json").write_text(json.dumps(account))
    return folder / "account.json"


async def test_a_call_goes_to_the_project_with_a_token_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/token":
            return web.json_response({"access_token": "canary-token", "expires_in": 3600, "token_type": "Bearer"})
        seen.append((request.path_qs, request.headers["authorization"]))
        return web.json_response(ANSWER)

    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials(tmp_path, f"{url}/token")))
    environ = {"GOOGLE_GENAI_USE_VERTEXAI": "true", "GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "europe-west4"}
    providers = Providers(Environment.read(environ | {"GOOGLE_GEMINI_BASE_URL": url}))

    said = (Message(role="user", content="Capital of France?"),)
    reply = await providers.complete(ModelRequest(ModelSpec(id="google_genai:gemini-3.6-flash"), Step(role="grader"), said))
    await providers.aclose()
    await server.close()

    path = "/v1/projects/p/locations/europe-west4/publishers/google/models/gemini-3.6-flash:streamGenerateContent?alt=sse"
    assert reply.message.content == "Paris."
    assert seen == [(path, "Bearer canary-token")]
