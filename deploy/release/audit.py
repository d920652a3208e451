"""Audits locks for known vulnerabilities: fails for one that is found, and says why where the database cannot be asked.

`audit.py LOCK... [OPTION...]`; the options are those of pip-audit.
"""

import json
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

AUDIT = (
    sys.executable,
    "-m",
    "pip_audit",
    "--disable-pip",
    "--require-hashes",
    "--vulnerability-service",
    "osv",
    "--progress-spinner",
    "off",
)


def main(*arguments: str) -> int:
    """Return 0 where nothing is known or nobody can be asked, 1 for a vulnerability, 2 for a lock that cannot be read."""
    locks = list(takewhile(lambda argument: not argument.startswith("--"), arguments))
    code = 0
    for lock in locks:
        if (found := audit(lock, *arguments[len(locks) :])) is None:
            break
        code = max(code, found)
    return code


def audit(lock: str, *options: str) -> int | None:
    """Audit one lock; return None where nobody can be asked."""
    command = [*AUDIT, "--requirement", lock, *options]
    read = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=False)
    if read.returncode:
        print(read.stderr, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command += ["--format", "json", "--output", str(report)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():
            words = done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"]
            print(f"audit of {lock} skipped: the database of vulnerabilities gave no answer: {words[-1]}")
            return None
        packages = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
    known = [(package, found) for package in packages for found in package.get("vulns", ())]
    for package, found in known:
        cure = f"fixed in {', '.join(found['fix_versions'])}; run make lock" if found["fix_versions"] else "no version fixes it yet"
        print(f"{package['name']} {package['version']}: {found['id']}: {found['description'][:200]} ({cure})")
    print(f"audit of {lock}: {len(packages)} packages, {len(known)} known vulnerabilities")
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
