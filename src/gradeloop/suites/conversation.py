"""What stands before an output: a prompt's or a test's messages, the variables filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest
from gradeloop.request import Generator
from gradeloop.spot import Spot, refused
from gradeloop.suites.fields import Said
from gradeloop.suites.suite import Prompt
from gradeloop.templates import fill_text
from gradeloop.transcript import MESSAGE_BYTES, Message

SYSTEM_CHARACTERS = 65_536
"""Of a generator's system prompt, as in a thread's request."""


@dataclass(frozen=True)
class Conversation:
    """Messages, and what the generator is told before them."""

    messages: tuple[Message, ...] = ()
    system: str | None = None

    def led(self, generator: Generator, where: Spot) -> Generator:
        """Return a generator whose system prompt ends with the conversation's.

        Raises:
            InvalidRequest: It takes none, or it would be too long.
        """
        if self.system is None:
            return generator
        if generator.model is None:
            raise InvalidRequest(f"{where}: a message of role 'system' is for a model; leave it out")
        whole = "\n\n".join(each for each in (generator.system_prompt, self.system) if each)
        if len(whole) > SYSTEM_CHARACTERS:
            raise InvalidRequest(f"{where}: the system prompt has {len(whole)} characters, {SYSTEM_CHARACTERS} at most; shorten it")
        return generator.model_copy(update={"system_prompt": whole})


def of_prompt(prompt: Prompt, variables: Mapping[str, JsonValue], where: Spot, name: str) -> Conversation:
    """Return a prompt with the variables in it; a text is one message of the user's."""
    said = prompt.messages or (Said(role="user", content=prompt.text or ""),)
    return of_messages(said, variables, where, f"prompt {name}")


def of_messages(said: Sequence[Said], variables: Mapping[str, JsonValue] | None, where: Spot, what: str = "messages") -> Conversation:
    """Return messages, with the variables in them where there are any: those that were recorded are literal.

    Raises:
        InvalidRequest: A variable is missing, a system message is not at the beginning, or a message cannot be.
    """
    system: list[str] = []
    messages: list[Message] = []
    for at, each in enumerate(said):
        told = f"{where}: {what}[{at}]" if len(said) > 1 else f"{where}: {what}"
        content = each.content if variables is None else fill_text(each.content, variables, told, MESSAGE_BYTES)
        if each.role == "system" and messages:
            raise InvalidRequest(f"{told}: a message of role 'system' stands after others; put it at the beginning")
        if each.role == "system":
            system.append(content)
        else:
            messages.append(_message(each, content, Spot(told)))
    return Conversation(tuple(messages), "\n\n".join(system) or None)


def _message(said: Said, content: str, where: Spot) -> Message:
    raw = said.model_dump(exclude={"content"}, exclude_none=True) | {"content": content}
    try:
        return Message.model_validate(raw)
    except ValidationError as error:
        raise refused(error, where) from None
