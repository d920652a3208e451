"""The headless Chromium of this machine, and the flags that it is started with."""

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)
"""As root and without a screen; and nothing that it looks up on its own."""


def executable() -> str | None:
    """Return the browser that is installed here; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)
