"""The thinking of earlier replies, which some providers take back only behind what it was written behind."""

import hashlib
import json
from dataclasses import replace

from pydantic import JsonValue

from gradeloop.contract.provider import ModelReply, ModelRequest

THINKING = frozenset({"thinking", "redacted_thinking"})
"""The types of Anthropic's blocks that a change of what stands before them makes invalid."""

BOUND = "bound"
"""The key, among a message's vendor parts, of the circumstances under which its thinking was written."""

ALONE = "alone"
"""The key, among a message's vendor parts, which says that the message was written without the thinking before it."""


def circumstances(request: ModelRequest, account: str) -> str:
    """Return a short sum of what a reply's thinking is bound to, beside the messages: model, system prompt, tools and account.

    Args:
        request: The call.
        account: What tells the account from others: the key, which cannot be had from the sum.
    """
    tools = [tool.model_dump(mode="json") for tool in request.tools]
    parts = [request.spec.model, request.system, tools, hashlib.sha256(account.encode()).hexdigest()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def first_with_thinking(request: ModelRequest, bound: str | None = None) -> int:
    """Return the index of the first message whose thinking may be sent; that of all before it is left out.

    One message whose thinking is bound to something else invalidates all thinking before it too: the oldest thinking may be left out, but
    none from the middle. So the same thinking is sent behind each message as when it was written.

    Args:
        request: The call.
        bound: Its own circumstances; None where none count.
    """
    if request.without_thinking:
        return len(request.messages)
    first = 0
    for at, message in enumerate(request.messages):
        vendor = message.vendor or {}
        first = at if vendor.get(ALONE) else first
        first = at + 1 if vendor.get(BOUND, bound) != bound else first
    # A model with a budget for its thinking is refused where a tool's result comes back without the thinking that led to the call.
    return min(first, _current_turn(request)) if isinstance(request.spec.config.thinking, int) else first


def _current_turn(request: ModelRequest) -> int:
    """Return the index of the message that the model is answering, with tool calls on the way."""
    roles = [message.role for message in request.messages]
    return max((at for at, role in enumerate(roles) if role == "user" and (at == 0 or roles[at - 1] != "tool")), default=0)


def with_circumstances(reply: ModelReply, request: ModelRequest, provider: str, bound: str | None = None) -> ModelReply:
    """Return a reply that says to what its thinking is bound, and whether the thinking before it was left out.

    Args:
        reply: The reply.
        request: The call.
        provider: The name under which the reply's own parts are kept.
        bound: The circumstances of the call; None where none count.
    """
    vendor = reply.message.vendor
    if not request.without_thinking and (vendor is None or bound is None):
        return reply
    alone: dict[str, JsonValue] = {ALONE: True} if request.without_thinking else {}
    noted = {**(vendor or {"provider": provider}), **({} if bound is None else {BOUND: bound}), **alone}
    return replace(reply, message=reply.message.model_copy(update={"vendor": noted}))
