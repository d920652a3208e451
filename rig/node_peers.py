"""Peers that live in Node's world: npm packages, installed once into the user's cache folder, and a Node that is new enough for them."""

import hashlib
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import platformdirs

NEEDED = (22, 22)
"""promptfoo 0.123.1 says `>=22.22.0`, Mastra 1.71.0 `>=22.13.0`, both in `engines`."""

_SYSTEM = {"Darwin": "darwin", "Linux": "linux"}.get(platform.system(), platform.system().lower())
_MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_BINDING = f"{_SYSTEM}-{_MACHINE}" + ("-gnu" if _SYSTEM == "linux" else "")

PROMPTFOO = ("promptfoo@0.123.1", "libsql@0.5.29", f"@libsql/{_BINDING}@0.5.29", "node-sql-parser@5.4.0")
"""With those of its optional packages that it does not start without, or that read SQL; all of them are 2 GB of SDKs."""

MASTRA = ("@mastra/evals@1.10.2", "@mastra/core@1.71.0", "zod@4.6.7")
"""The core brings what talks to an OpenAI-compatible URL; zod is a peer dependency of its."""

NODE = (f"{'node-bin' if (_SYSTEM, _MACHINE) == ('darwin', 'arm64') else 'node'}-{_SYSTEM}-{_MACHINE}@22.23.3",)
"""Node itself as an npm package, for a machine whose own is too old."""

_OPTIONS = ("--omit=optional", "--omit=peer", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error")
_TOLD = 2000


@dataclass(frozen=True)
class Peer:
    """A peer that can be run."""

    node: Path
    """The Node that runs it."""
    modules: Path
    """Its `node_modules`."""

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        """Return the variables with this Node first on the path, for whatever the peer starts."""
        return variables | {"PATH": f"{self.node.parent}:{variables.get('PATH', '')}"}


def peer(pins: tuple[str, ...]) -> Peer:
    """Return a peer, which is installed now if it is not.

    Raises:
        SystemExit: Node or npm is missing, or the packages cannot be had; the message says so.
    """
    return Peer(_node(), _installed(pins))


def _node() -> Path:
    """Return the machine's own Node if it is new enough, else one from an npm package."""
    own = shutil.which("node")
    if own and _version(own) >= NEEDED:
        return Path(own)
    name = NODE[0].rpartition("@")[0]
    return _installed(NODE) / name / "bin" / "node"


def _version(node: str) -> tuple[int, ...]:
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in told.strip().lstrip("v").split(".") if part.isdigit())


def _installed(pins: tuple[str, ...]) -> Path:
    """Return the `node_modules` of these packages."""
    name = hashlib.sha256(" ".join((*pins, *_OPTIONS)).encode()).hexdigest()[:16]
    folder = platformdirs.user_cache_path("gradeloop") / "benchmarks" / f"{name}-npm"
    if not (made := folder / ".made").exists():
        _install(folder, pins)
        made.touch()
    return folder / "node_modules"


def _install(folder: Path, pins: tuple[str, ...]) -> None:
    if not (npm := shutil.which("npm")):
        raise SystemExit(f"npm is not on the PATH, and the peer {pins[0]} comes from it; install Node with npm (Debian: apt install npm)")
    print(f"installing {', '.join(pins)} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    done = subprocess.run([npm, "install", "--prefix", str(folder), *_OPTIONS, *pins], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"npm could not install {', '.join(pins)} (exit {done.returncode}); it says:\n{done.stderr.strip()[-_TOLD:]}")
