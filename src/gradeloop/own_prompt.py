"""A grading prompt of one's own: text with two places, where the rubric and what is judged are put in, never rendered."""

import re
from typing import Any, Literal

from pydantic import model_validator
from pydantic.json_schema import JsonSchemaValue

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.strict import Items, OrText, Sparse, Strict

PROMPT_CHARACTERS = 65_536

_PLACE = re.compile(r"\{\{\s*(rubric|output|transcript)((?:\.\w+)*)\s*\}\}")


class Place(Strict):
    """Where something is put in."""

    of: Literal["rubric", "output", "transcript"]
    path: Sparse[tuple[str, ...]] = ()
    """Keys into a JSON draft, or into the object that describes the criterion."""

    @property
    def written(self) -> str:
        """The place as its author wrote it."""
        return "{{ " + ".".join((self.of, *self.path)) + " }}"


class PromptMessage(Strict):
    """A message of the prompt, cut at its places; on the wire also `{role, content}`."""

    role: Literal["system", "user", "assistant"] = "user"
    parts: tuple[str | Place, ...]

    @model_validator(mode="before")
    @classmethod
    def _from_content(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, dict) and isinstance(value.get("content"), str) and "parts" not in value:
            rest = {key: item for key, item in value.items() if key != "content"}
            return rest | {"parts": cut(value["content"])}
        return value


class OwnPrompt(OrText):
    """Messages for the grader, in which the rubric and the output have their places."""

    messages: Items[PromptMessage]

    @classmethod
    def other_forms(cls) -> list[JsonSchemaValue]:
        """Return the form of a chat: `[{role, content}]`."""
        text = {"type": "string"}
        said = {"role": {"enum": ["system", "user", "assistant"]}, "content": text}
        message = {"type": "object", "properties": said, "required": ["content"], "additionalProperties": False}
        return [{"type": "array", "items": message}]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - raw input of any shape
        if isinstance(value, str):
            if value.startswith("file://"):
                raise ValueError(f"{clip(value)} is read where the rubric is a file; elsewhere write the prompt's text")
            value = [{"role": "user", "content": value}]
        return {"messages": tuple(value)} if isinstance(value, list | tuple) else value

    @property
    def reaches(self) -> tuple[Place, ...]:
        """The places that reach into a criterion's description: such a prompt is about one criterion."""
        parts = [part for message in self.messages for part in message.parts]
        return tuple(part for part in parts if isinstance(part, Place) and part.of == "rubric" and part.path)

    @model_validator(mode="after")
    def _has_its_places(self) -> "OwnPrompt":
        places = [part.of for message in self.messages for part in message.parts if isinstance(part, Place)]
        if not {"output", "transcript"} & set(places):
            raise ValueError("the prompt has no {{ output }}; write where the draft is put in")
        if self.messages[-1].role != "user":
            raise ValueError(f"the prompt ends with role {self.messages[-1].role!r}; its last message is of role 'user'")
        if any(isinstance(part, Place) for message in self.messages if message.role == "system" for part in message.parts):
            raise ValueError("a message of role 'system' has a place in it; put what is judged into a message of role 'user'")
        size = sum(len(part) for message in self.messages for part in message.parts if isinstance(part, str))
        if size > PROMPT_CHARACTERS:
            raise ValueError(f"the prompt has {size} characters, {PROMPT_CHARACTERS} at most; shorten it")
        return self


def reached(value: Any, place: Place) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return what a place reaches in a value.

    Raises:
        InvalidRequest: It is not there; the message names the place.
    """
    for at, key in enumerate(place.path):
        inside = value.get(key, _ABSENT) if isinstance(value, dict) else _item(value, key)
        if inside is _ABSENT:
            where = ".".join((place.of, *place.path[:at]))
            raise InvalidRequest(f"prompt: {place.written}: there is no {clip(key)} in {where}; correct the place, or what it reaches into")
        value = inside
    return value


_ABSENT = object()


def _item(value: Any, key: str) -> Any:  # noqa: ANN401 - JSON of any shape
    return value[int(key)] if isinstance(value, list) and key.isdecimal() and int(key) < len(value) else _ABSENT


def cut(text: str) -> tuple[str | Place, ...]:
    """Cut a text at its places."""
    parts: list[str | Place] = []
    start = 0
    for found in _PLACE.finditer(text):
        parts += [text[start : found.start()], Place.model_validate({"of": found[1], "path": tuple(found[2].split(".")[1:])})]
        start = found.end()
    return tuple(part for part in (*parts, text[start:]) if part != "")
