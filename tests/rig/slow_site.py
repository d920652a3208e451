"""A site of pages that are slow to read, as a process of its own: `/html/NUMBER` of 2 MiB, `/small`, `/text?charset=NAME`."""

from aiohttp import web

MIB = 1024 * 1024

PARTS = (
    "<a b='", '<a b="x', "<", "<!--", "<![", "<!DOCTYPE ", "<?", "&#", "</p>", "</a ", "<div>", "<form><p>", "<a b=c ", "&lt", "<script>",
    "<a     ",
)  # fmt: skip
"""What is repeated to a page of 2 MiB: each takes some parser a time that grows with the square of its length."""


async def page(request: web.Request) -> web.StreamResponse:
    """Answer by the path."""
    if request.path == "/text":
        return web.Response(body=b"ba" * MIB, headers={"content-type": f"text/plain; charset={request.query['charset']}"})
    if request.path == "/small":
        return web.Response(body=b"ba" * (160 * 1024), headers={"content-type": "text/html; charset=punycode"})  # every parser waits for it
    part = PARTS[int(request.path.rpartition("/")[2]) % len(PARTS)]
    return web.Response(body=(part * (2 * MIB // len(part))).encode(), content_type="text/html")


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/{any:.*}", page)
    web.run_app(app, host="127.0.0.1", port=0, print=lambda text: print(text, flush=True), handle_signals=True)
