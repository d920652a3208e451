"""A page in a real browser: its requests, complaints and dialogs, what axe finds, and what does not fit."""

from dataclasses import dataclass, field

from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]  # it has no types
from playwright.async_api import ConsoleMessage, Dialog, Page


@dataclass
class Seen:
    """What a page did that nobody asked it for."""

    dialogs: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """But for the page itself."""
    complaints: list[str] = field(default_factory=list)
    """Errors of its script, and what its policy kept out."""


def watch(page: Page) -> Seen:
    """Take note of what a page does from now on."""
    seen = Seen()

    async def dismiss(dialog: Dialog) -> None:
        seen.dialogs.append(dialog.message)
        await dialog.dismiss()

    page.on("dialog", dismiss)
    page.on("request", lambda request: None if request.is_navigation_request() else seen.requests.append(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("console", lambda message: seen.complaints.append(message.text) if _complains(message) else None)
    return seen


def _complains(message: ConsoleMessage) -> bool:
    """Tell whether a page complains; a live page that got no answer from a busy worker in time asks again by itself."""
    return message.type in {"error", "warning"} and "the server responded with a status of 503" not in message.text


async def axe_findings(page: Page) -> list[str]:
    """Return every issue that axe-core finds, a line each."""
    await page.evaluate(AXE_SCRIPT)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['impact']}: {violation['id']}: {violation['help']}: {node['html'][:200]}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


async def too_wide(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


async def cut_off(page: Page) -> list[str]:
    """Return what of a page's main part lies outside of its window or of the box that shows it; lines that are meant to be cut aside."""
    found: list[str] = await page.evaluate(
        """() => [...document.querySelectorAll('main *, header *')].filter((each) => {
          if (!each.checkVisibility() || each.closest('.sr, .said-line, .said, .where, svg, .strip')) return false;
          if (each.closest('thead') && each.closest('.stack, .cases')) return false;
          const style = getComputedStyle(each), box = each.getBoundingClientRect();
          const cut = style.overflowX !== 'visible' && each.scrollWidth > each.clientWidth + 1;
          return cut || (box.width > 0 && (box.right > innerWidth + 1 || box.left < -1));
        }).map((each) => `${each.tagName}.${each.className}: ${each.textContent.trim().slice(0, 60)}`)"""
    )
    return found
