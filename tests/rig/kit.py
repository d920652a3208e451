"""The shipped test kit's worker, as the tests share it: one process a run, its models, and its server."""

from dataclasses import dataclass

from gradeloop.temporal.connect import Connection
from gradeloop.testing import ScriptedModels, WorkerProcess

TOOLS = '''
def count_lines(text: str) -> int:
    """Count the lines of a text."""
    return len(text.splitlines())
'''


@dataclass
class Kit:
    """A worker process with an evidence tool; each test scripts its models anew."""

    models: ScriptedModels
    process: WorkerProcess
    server: Connection
