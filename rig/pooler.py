"""A PgBouncer before a PostgreSQL, which gives each transaction to whichever server connection is free."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from rig.postgresql import free_port

PROGRAM = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")

SETTINGS = """[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
auth_type = any
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
unix_socket_dir =
"""


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """Run a PgBouncer in transaction mode before the PostgreSQL of a URL, and yield the URL that leads through it; skip without one."""
    if PROGRAM is None:
        pytest.skip("PgBouncer is not installed (Debian, Ubuntu: apt install pgbouncer)")
    parts, own_port, folder = urlsplit(url), free_port(), Path(tempfile.mkdtemp(prefix="gradeloop-pgbouncer-"))
    (folder / "users.txt").write_text(f'"{parts.username}" ""\n')
    (folder / "settings.ini").write_text(
        SETTINGS.format(host=parts.hostname, port=parts.port, own=own_port, folder=folder, user=parts.username)
    )
    user = "postgres" if os.geteuid() == 0 else None
    for path in (folder, *folder.iterdir()) if user else ():
        shutil.chown(path, str(user))
    process = subprocess.Popen([PROGRAM, folder / "settings.ini"], user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    through = url.replace(f":{parts.port}", f":{own_port}", 1)
    try:
        _until_answering(process, through)
        yield through
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _until_answering(process: "subprocess.Popen[bytes]", url: str) -> None:
    while True:
        assert process.poll() is None
        with suppress(psycopg.OperationalError), closing(psycopg.connect(url)):
            return
        time.sleep(0.02)
