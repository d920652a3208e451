"""The name of a completion's cap, by which compatible servers differ, and which a server's refusal teaches."""

import re
from dataclasses import replace

from activities.errors import failure_facts
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import CapField, ModelReply, ModelRequest, Provider
from gradeloop.settings.endpoints import listed_model

_OTHER: dict[CapField, CapField] = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}

_OPENAI_MODEL = re.compile(r"(openai/)?(gpt-[3-9]|chatgpt-|o[1-9]\b).*|ft:(gpt-|o[1-9]).*")
_OPENAI_HOSTS = (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com", "api.openai.com")
_UNKNOWN_FIELD = re.compile(
    r"not supported|unsupported|unrecogni[sz]ed|unknown|unexpected|extra (inputs|fields)|not permitted", re.IGNORECASE
)
_UNKNOWN_CODES = frozenset({"unsupported_parameter", "unknown_parameter"})
_BAD_FIELD_STATUSES = frozenset({400, 422})


def cap_field(spec: ModelSpec, host: str) -> CapField:
    """Return the cap's name for a model: OpenAI's own models, on Azure too, take the newer one alone, and other servers often the older."""
    if spec.provider == "openrouter":
        return "max_tokens"
    own = host.endswith(_OPENAI_HOSTS) or listed_model(spec.provider, spec.model)[0] == "openai" or _OPENAI_MODEL.fullmatch(spec.model)
    return "max_completion_tokens" if own else "max_tokens"


def refuses_field(error: Exception, field: CapField) -> bool:
    """Return whether an error says that the server does not know a field, not that its value is wrong."""
    facts = failure_facts(error)
    if facts.status not in _BAD_FIELD_STATUSES:
        return False
    is_named = re.search(rf"\b{field}\b", facts.message) is not None or getattr(error, "param", None) == field
    return is_named and (not _UNKNOWN_CODES.isdisjoint(facts.codes) or _UNKNOWN_FIELD.search(facts.message) is not None)


class LearnsCapField:
    """Calls a compatible server with the name of the cap that it takes; its refusal of the one teaches the other, once a model."""

    def __init__(self, server: Provider, host: str, learned: dict[str, CapField]) -> None:
        self._server = server
        self._host = host
        self._learned = learned

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call, and the same one once more where the server does not know the cap by its name; see `Provider`."""
        model = request.spec.model
        field = self._learned.get(model) or cap_field(request.spec, self._host)
        try:
            return await self._server.complete(replace(request, cap_field=field))
        except Exception as error:
            if not refuses_field(error, field):
                raise
            self._learned[model] = _OTHER[field]
        return await self._server.complete(replace(request, cap_field=_OTHER[field]))
