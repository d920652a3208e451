"""The checks of `gradeloop doctor`: server, keys, sandboxes and tools of this machine."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

from pydantic import Field
from rich.text import Text
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.contract.base import Strict
from gradeloop.contract.thread import SEARCH_ATTRIBUTES
from gradeloop.errors import GradeloopError
from gradeloop.settings.default_model import default_model
from gradeloop.settings.trust import CONFIG_FILE, TRUST_COMMAND, TRUST_FLAG
from gradeloop.temporal.connect import Connection, connect, find
from gradeloop.temporal.worker import application_folder
from gradeloop.text import printable

RETENTION = timedelta(days=30)
"""The shortest retention that lets a user resume a closed thread after a holiday."""

EXAMINATION_SECONDS = 90.0
"""How long the worker process may take, which calls every provider whose key is set."""

KEY_VERDICTS = {
    "accepted": "accepted by",
    "refused": "refused by",
    "unreachable": "not checked: no answer from",
    "not installed": "not checked: package missing for",
    "not set": "none for",
}
"""The result of a key's check, before the address of its provider."""


class Finding(Strict):
    """The result of one check."""

    subject: str
    ok: bool | None
    """None if nothing is wrong but something is missing."""
    detail: str = Field(serialization_alias="told")
    """What was found, in one line."""
    cure: str | None = None


async def findings(*, trust: bool = False) -> AsyncIterator[Finding]:
    """Check the server, the default grader, the keys, the tables of models and prices, the sandboxes and the tools.

    Args:
        trust: Whether to trust the folder's gradeloop.toml first, so that its tools are checked, too.
    """
    try:
        connection = await find()
        client = await connect(connection)
    except GradeloopError as error:
        yield Finding(subject="server", ok=False, detail=str(error))
    else:
        for found in await _check_server(client, connection):
            yield found
    yield _check_default_grader()
    for found in await _check_worker(trust=trust):
        yield found


async def _check_server(client: Client, connection: Connection) -> list[Finding]:
    service = client.workflow_service
    version = (await service.get_system_info(GetSystemInfoRequest())).server_version
    kind = "embedded" if connection.embedded else "from Temporal's environment or profile"
    found = [Finding(subject="server", ok=True, detail=f"Temporal {version} at {connection.address}, namespace {client.namespace}, {kind}")]
    described = await service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    kept = described.config.workflow_execution_retention_ttl.ToTimedelta()
    command = f"temporal operator namespace update --retention 365d --namespace {client.namespace}"
    enough = kept >= RETENTION
    detail = f"closed threads stay readable for {kept.days} days"
    found.append(Finding(subject="retention", ok=enough, detail=detail, cure=None if enough else f"raise it: {command}"))
    return [*found, await _check_search_attributes(client)]


async def _check_search_attributes(client: Client) -> Finding:
    try:
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    except RPCError as error:
        return Finding(subject="search attributes", ok=None, detail=f"not visible with these credentials ({error.message})")
    absent = [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
    if absent:
        return Finding(subject="search attributes", ok=None, detail=f"{', '.join(absent)} are not registered yet; a worker registers them")
    return Finding(subject="search attributes", ok=True, detail=", ".join(SEARCH_ATTRIBUTES))


def _check_default_grader() -> Finding:
    chosen = default_model(os.environ)
    if chosen is None:
        cure = "set a provider's key, or give grader.model in every request"
        return Finding(subject="default grader", ok=None, detail="none: no provider key is set", cure=cure)
    return Finding(subject="default grader", ok=True, detail=f"{chosen.spec.id}, because {chosen.variable} is set")


async def _check_worker(*, trust: bool) -> list[Finding]:
    """Run a worker process, which has the providers' packages, to check keys, tables and sandboxes."""
    command = [sys.executable, str(application_folder() / "worker.py"), "--examine", "true", *([TRUST_FLAG] if trust else [])]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        out, err = await asyncio.wait_for(process.communicate(), EXAMINATION_SECONDS)
    except TimeoutError:
        process.kill()
        return [Finding(subject="worker", ok=False, detail=f"no answer within {EXAMINATION_SECONDS:.0f} s")]
    if process.returncode:
        return [Finding(subject="worker", ok=False, detail=err.decode(errors="replace").strip().rpartition("\n")[2])]
    return list(_read_examination(json.loads(out)))


def _read_examination(report: dict[str, Any]) -> Iterator[Finding]:
    for key in report["keys"]:
        ok = key["verdict"] == "accepted"
        why = "" if ok else f": {key['why']}"
        yield Finding(subject=f"key of {key['provider']}", ok=ok, detail=f"{KEY_VERDICTS[key['verdict']]} {key['address']}{why}")
    if not report["keys"]:
        yield Finding(subject="keys", ok=None, detail="none is set; only the provider `scripted` works without one")
    own = f", {report['own_prices']} prices of your own" if report["own_prices"] else ""
    yield Finding(subject="tables", ok=True, detail=f"models as of {report['models_as_of']}, prices as of {report['prices_as_of']}{own}")
    yield from _read_evidence(report["evidence"])


def _read_evidence(report: dict[str, Any]) -> Iterator[Finding]:
    """Yield what evidence tools may use under the current settings."""
    config = report["config"]
    if uncounted := report["uncounted"]:
        detail = f"{config} is not trusted, so these of its settings do not count: {', '.join(uncounted)}"
        yield Finding(subject="settings", ok=None, detail=detail, cure=f"read it, then run: {TRUST_COMMAND}")
    else:
        absent = f"no {CONFIG_FILE} in this folder; defaults apply"
        yield Finding(subject="settings", ok=None if config is None else True, detail=config or absent)
    for sandbox in report["sandboxes"]:
        why, failed = sandbox["why_not"], sandbox["why_not"] and not sandbox["missing"]
        detail = f"it is there, but fails its self-test: {why}" if failed else why or "works"
        yield Finding(subject=f"sandbox {sandbox['name']}", ok=None if why else True, detail=detail)
    for sentence in report["replaced"]:
        yield Finding(subject="replaced sandbox", ok=None, detail=sentence)
    chosen = {use: name or "none" for use, name in report["chosen"].items()}
    cure = None if report["chosen"]["programs"] else "install bubblewrap, or use Linux 5.13 or newer with Landlock"
    yield Finding(subject="sandbox", ok=report["chosen"]["snippets"] is not None, detail=_pairs(chosen), cure=cure)
    yield Finding(subject="limits", ok=True, detail=f"{_pairs(report['limits'])}; {report['concurrency']} calls at the same time")
    yield Finding(subject="tools", ok=True, detail=", ".join(report["tools"]))
    for name, why in report["refused"].items():
        yield Finding(subject=f"tool {name}", ok=None, detail=why)
    for subject in ("roots", "commands", "mcp"):
        if report[subject]:
            yield Finding(subject=subject, ok=True, detail=_pairs(report[subject]))
    if report["hosts"]:
        yield Finding(subject="hosts", ok=True, detail=", ".join(report["hosts"]))


def _pairs(values: dict[str, Any]) -> str:
    shown = {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value != "")


def lines(found: Finding) -> Iterator[Text]:
    """Yield a finding as lines for a terminal."""
    mark, style = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "dim")}[found.ok]
    yield Text(f"{mark} {found.subject}: ", style).append(printable(found.detail), "default")
    if found.cure:
        yield Text(f"  {printable(found.cure)}", "yellow")
