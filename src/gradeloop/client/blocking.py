"""The client for code without an event loop, such as Django's and Flask's; its methods are made from the async client's.

The types of the methods are in `blocking.pyi`, which `python -m tests.client.blocking_stub` writes; a test compares the two.
"""

from gradeloop.client.client import GradingClient
from gradeloop.client.loop_thread import OWN, LoopThread, plain_method
from gradeloop.contract.thread import TASK_QUEUE


class SyncGradingClient:
    """Threads on one Temporal namespace, for all threads of a process: `with SyncGradingClient.connect() as client: client.close()`."""

    def __init__(self, client, loop) -> None:  # noqa: ANN001 - the stub has the types
        self._client = client
        self._loop = loop

    @classmethod
    def connect(cls, connection=None, *, task_queue=TASK_QUEUE):  # noqa: ANN001, ANN206 - the stub has the types
        """Connect to the server of Temporal's environment or profile, else to the embedded one."""
        loop = LoopThread()
        try:
            return cls(loop.run(GradingClient.connect(connection, task_queue=task_queue)), loop)
        except BaseException:
            loop.stop()
            raise

    def close(self) -> None:
        """Close this client: calls in flight end, and further ones are refused. Threads continue."""
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.stop()

    def __enter__(self):  # noqa: ANN204 - the stub has the types
        return self

    def __exit__(self, *error) -> None:  # noqa: ANN002 - the stub has the types
        self.close()


for _name, _method in vars(GradingClient).items():
    if not _name.startswith("_") and _name not in OWN:
        setattr(SyncGradingClient, _name, plain_method(_name, _method))
