"""Doors for other programs: agents by MCP, and trainers by a reward function."""
