"""Copies what the distributions are made from, with the address of the repository that releases them.

python deploy/release/with_links.py FOLDER writes `[project.urls]`, and links of the README that lead to the repository's files at the
version's tag: an index shows the README without them. The repository is that of GitHub's variables, or REPOSITORY; without one, nothing is
written, and the links stay as they are.
"""

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")
"""A link, or an image, whose target is a file of the repository."""


def repository(environ: Mapping[str, str]) -> str | None:
    """Return the address of the repository, without a slash at its end; None where no variable names it."""
    server, name = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_REPOSITORY")
    return environ.get("REPOSITORY") or (f"{server}/{name}" if server and name else None)


def absolute(text: str, address: str, tag: str) -> str:
    """Return a page whose relative links lead to the repository."""
    return LINK.sub(lambda link: f"{link[1]}{link[2]}({address}/{'raw' if link[1] else 'blob'}/{tag}/{link[3]})", text)


def urls(address: str, tag: str) -> str:
    """Return the table of the project's addresses."""
    names = {"Repository": "", "Documentation": f"/tree/{tag}/docs", "Changelog": f"/blob/{tag}/CHANGELOG.md", "Issues": "/issues"}
    return "\n[project.urls]\n" + "".join(f'{name} = "{address}{path}"\n' for name, path in names.items())


def main(folder: Path) -> None:
    """Write the copy."""
    settings = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(settings)
    for name in ["/pyproject.toml", *project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]:
        source, target = ROOT / name[1:], folder / name[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    if address := repository(os.environ):
        tag, readme = f"v{project['project']['version']}", folder / "README.md"
        (folder / "pyproject.toml").write_text(settings + urls(address, tag))
        readme.write_text(absolute(readme.read_text(), address, tag))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
