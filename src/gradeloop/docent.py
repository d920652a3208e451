"""The short name of `gradeloop.integrations.docent`."""

from gradeloop.integrations.docent import *  # noqa: F403 - exactly its `__all__`
