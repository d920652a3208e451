"""What the templates of the live page know beyond the story."""

from gradeloop.reports.document import Live


class Steered(Live):
    """A page that people steer from, and where what it shows stands."""

    thread: str | None = None
    """The path of the thread that is shown; of a case, of the thread that it was."""
    status: str | None = None
    """Of a thread: idle, running, waiting or interrupted; None where this page takes no word."""
    open: bool = False
    """False where nothing changes by itself any more: the thread is closed, the batch has ended."""
    tag: str = ""
    """Of what is shown, for the first look for changes."""
