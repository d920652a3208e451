"""What of the settings is in force on a worker, as `gradeloop doctor` shows it."""

from typing import Any

from activities.tools.shelf import Shelf
from activities.tools.toolbox import Toolbox
from gradeloop.sandbox import Sandbox


def in_force(shelf: Shelf, toolbox: Toolbox) -> dict[str, Any]:
    """Return sandboxes, tools and where they may reach, as JSON; values of variables are not among it."""
    settings, choice = shelf.settings, shelf.sandboxes
    named = {"snippets": choice.snippets, "programs": choice.programs, "commands": choice.commands}
    return {
        "config": str(settings.config) if settings.config else None,
        "sandboxes": [{"name": each.name, "why_not": each.why} for each in choice.tried],
        "chosen": {use: _name(box) for use, box in named.items()},
        "limits": settings.sandbox.model_dump(mode="json"),
        "tools": [_words(tool.spec.name, approval=tool.needs_approval, repeatable=tool.repeatable) for tool in toolbox],
        "refused": toolbox.refused,
        "roots": {name: str(path) for name, path in settings.files.roots.items()},
        "commands": {name: list(each.argv) for name, each in settings.commands.items()},
        "hosts": list(settings.fetch.hosts),
        "mcp": {name: list(each.tools) for name, each in settings.mcp.items()},
        "concurrency": settings.max_concurrent_activities,
    }


def _name(box: Sandbox | None) -> str | None:
    return box.name if box else None


def _words(name: str, *, approval: bool, repeatable: bool) -> str:
    marks = [*(["needs approval"] if approval else ()), *(["runs once"] if not repeatable else ())]
    return f"{name} ({', '.join(marks)})" if marks else name
