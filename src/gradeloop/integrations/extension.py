"""The neighbour `integrations`: doors for other programs."""

from gradeloop.extensions import Command, Extension

EXTENSION = Extension(
    name="integrations",
    commands={"mcp": Command("Agents", "Serve agents by MCP: grade, revise, wait, explain.", "gradeloop.integrations.cli:app")},
)
