"""An MCP server for tests, over standard input and output or HTTP: `python mcp_server.py FOLDER [PORT]`."""

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.types import Image
from mcp.types import ToolAnnotations

FOLDER = Path(sys.argv[1])
READS = ToolAnnotations(read_only_hint=True)

server = MCPServer("shop")


@server.tool(annotations=READS)
def opening_hours(day: str) -> str:
    """Tell when the shop is open."""
    with (FOLDER / "calls").open("a") as file:
        file.write(day + "\n")
    return "closed" if day == "sunday" else "9 to 18"


@server.tool(annotations=READS)
def everything() -> str:
    """Return 5 MB."""
    return "HEAD" + "x" * 5_000_000 + "TAIL"


@server.tool(annotations=READS)
def broken() -> str:
    """Fail."""
    raise ToolError("no such shelf")


@server.tool(annotations=READS)
def picture() -> Image:
    """Show a picture."""
    return Image(data=b"\x89PNG" + bytes(1000), format="png")


@server.tool(annotations=READS)
def stuck() -> str:
    """Never return."""
    import time

    time.sleep(600)
    return ""


@server.tool()
def order(amount: int) -> str:
    """Order something."""
    return f"ordered {amount}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def reserve(amount: int) -> str:
    """Reserve something."""
    return f"reserved {amount}"


@server.tool(annotations=READS, description=(FOLDER / "description").read_text() if (FOLDER / "description").exists() else "Before.")
def changing(word: str) -> str:
    """Change."""
    return word


@server.tool(annotations=READS)
def environment() -> str:
    """Tell the variables."""
    import os

    return " ".join(sorted(os.environ))


@server.tool(annotations=READS)
def leave() -> str:
    """End the server."""
    import os

    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
