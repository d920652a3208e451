"""Templates of a judge's prompt: text with places in single braces, cut once, so that what is put in is never read again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Literal

from pydantic import Field

from gradeloop.printable import clip, did_you_mean
from gradeloop.strict import Strict

TEMPLATE_CHARACTERS = 65_536
"""Of all templates of a judge."""

REQUIRED = ("agent_run", "rubric", "output_schema")
OPTIONAL = ("output_format_instructions",)
"""Docent's own; filled with how the answer is written."""

TemplateRole = Literal["system", "user", "assistant"]


class PromptTemplate(Strict):
    """A message of the prompt."""

    role: TemplateRole
    content: str = Field(min_length=1)


@dataclass(frozen=True)
class Place:
    """Where something is put in."""

    name: str


def cut(text: str) -> list[str | Place]:
    """Cut a template at its places; `{{` and `}}` stand for braces.

    Raises:
        ValueError: A brace is unbalanced, or a place is more than one of the known names.
    """
    parts: list[str | Place] = []
    try:
        read = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"the template's braces are unbalanced ({error}); write {{{{ and }}}} for braces that are meant as such") from None
    for literal, name, spec, conversion in read:
        parts += [literal] if literal else []
        if name is not None:
            parts.append(_place(name, spec or "", conversion))
    return parts


def _place(name: str, spec: str, conversion: str | None) -> Place:
    known = (*REQUIRED, *OPTIONAL)
    if not name:
        raise ValueError(f"the template has a place without a name, {{}}; write one of {', '.join(f'{{{each}}}' for each in known)}")
    bare = name.partition(".")[0].partition("[")[0]
    if bare != name and bare in known:
        what = "an index" if "[" in name else "an attribute"
        raise ValueError(f"the template's place {clip(name)} has {what}; write {{{bare}}} alone")
    if name not in known:
        cure = " Braces that are meant as such are doubled." if not name.isidentifier() else ""
        raise ValueError(f"the template has an unknown variable {clip(name)}.{did_you_mean(name, list(known))}{cure}")
    if spec:
        raise ValueError(f"the template's place {clip(name)} has a format, {clip(spec)}; write {{{name}}} alone")
    if conversion:
        raise ValueError(f"the template's place {clip(name)} has a conversion, '!{conversion}'; write {{{name}}} alone")
    return Place(name)


def refuse_templates(templates: Sequence[PromptTemplate], key: str | None) -> None:
    """Raise ValueError where templates lack a place, or the opening tag of a key, or cannot be sent.

    Args:
        templates: All of a judge's.
        key: The name of the tags between which the answer stands; None where a schema binds it.
    """
    if not templates:
        raise ValueError("prompt_templates is empty; give at least one message, or leave it out for ours")
    size = sum(len(each.content) for each in templates)
    if size > TEMPLATE_CHARACTERS:
        raise ValueError(f"prompt_templates have {size} characters, {TEMPLATE_CHARACTERS} at most; shorten them")
    parts = [_numbered(at, each) for at, each in enumerate(templates)]
    named = {part.name for each in parts for part in each if isinstance(part, Place)}
    if missing := [name for name in REQUIRED if name not in named]:
        raise ValueError(f"prompt_templates lack {', '.join(f'{{{name}}}' for name in missing)}; write where it is put in")
    if key is not None and not any(f"<{key}>" in part for each in parts for part in each if isinstance(part, str)):
        raise ValueError(f"no prompt template has the opening tag <{key}>; ask for the answer between <{key}> and </{key}>")
    said = [each.role for each in templates if each.role != "system"]
    if said and said[-1] != "user":
        raise ValueError(
            "the last of prompt_templates is of role 'assistant'; current models take no answer begun for them, end with 'user'"
        )


def _numbered(at: int, template: PromptTemplate) -> list[str | Place]:
    try:
        return cut(template.content)
    except ValueError as error:
        raise ValueError(f"prompt_templates[{at}]: {error}") from None


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a template with its places filled; what is put in is not looked at."""
    return "".join(part if isinstance(part, str) else values[part.name] for part in cut(text))
