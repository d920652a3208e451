"""`gradeloop doctor`: check the server, keys, sandboxes and tools of this machine."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

from rich.text import Text
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.contract.base import Strict
from gradeloop.contract.thread import SEARCH_ATTRIBUTES
from gradeloop.errors import GradeloopError
from gradeloop.settings.default_model import default_model
from gradeloop.settings.worker import CONFIG_FILE
from gradeloop.temporal.connect import Connection, connect, find
from gradeloop.temporal.worker import application_folder
from gradeloop.text import printable

RETENTION = timedelta(days=30)
"""The shortest retention that lets a user resume a closed thread after a holiday."""

EXAMINATION_SECONDS = 90.0

WORDS = {
    "accepted": "accepted by",
    "refused": "refused by",
    "unreachable": "not checked: no answer from",
    "not installed": "not checked: package missing for",
}
"""The result of a key's check, before the address of its provider."""


class Finding(Strict):
    """The result of one check."""

    subject: str
    ok: bool | None
    """None if nothing is wrong but something is missing."""
    told: str
    cure: str | None = None


async def findings() -> AsyncIterator[Finding]:
    """Check the server, the default grader, the keys, the tables of models and prices, the sandboxes and the tools."""
    try:
        connection = await find()
        client = await connect(connection)
    except GradeloopError as error:
        yield Finding(subject="server", ok=False, told=str(error))
    else:
        for found in await _server(client, connection):
            yield found
    yield _default_grader()
    for found in await _worker():
        yield found


async def _server(client: Client, connection: Connection) -> list[Finding]:
    service = client.workflow_service
    version = (await service.get_system_info(GetSystemInfoRequest())).server_version
    kind = "embedded" if connection.embedded else "from Temporal's environment or profile"
    found = [Finding(subject="server", ok=True, told=f"Temporal {version} at {connection.address}, namespace {client.namespace}, {kind}")]
    described = await service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    kept = described.config.workflow_execution_retention_ttl.ToTimedelta()
    command = f"temporal operator namespace update --retention 365d --namespace {client.namespace}"
    enough = kept >= RETENTION
    told = f"closed threads stay readable for {kept.days} days"
    found.append(Finding(subject="retention", ok=enough, told=told, cure=None if enough else f"raise it: {command}"))
    return [*found, await _attributes(client)]


async def _attributes(client: Client) -> Finding:
    try:
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    except RPCError as error:
        return Finding(subject="search attributes", ok=None, told=f"not visible with these credentials ({error.message})")
    absent = [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
    if absent:
        return Finding(subject="search attributes", ok=None, told=f"{', '.join(absent)} are not registered yet; a worker registers them")
    return Finding(subject="search attributes", ok=True, told=", ".join(SEARCH_ATTRIBUTES))


def _default_grader() -> Finding:
    chosen = default_model(os.environ)
    if chosen is None:
        cure = "set a provider's key, or give grader.model in every request"
        return Finding(subject="default grader", ok=None, told="none: no provider key is set", cure=cure)
    return Finding(subject="default grader", ok=True, told=f"{chosen.spec.id}, because {chosen.variable} is set")


async def _worker() -> list[Finding]:
    """Run a worker process, which has the providers' packages, to check keys, tables and sandboxes."""
    command = [sys.executable, str(application_folder() / "worker.py"), "--examine", "true"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        out, err = await asyncio.wait_for(process.communicate(), EXAMINATION_SECONDS)
    except TimeoutError:
        process.kill()
        return [Finding(subject="worker", ok=False, told=f"no answer within {EXAMINATION_SECONDS:.0f} s")]
    if process.returncode:
        return [Finding(subject="worker", ok=False, told=err.decode(errors="replace").strip().rpartition("\n")[2])]
    return list(_examined(json.loads(out)))


def _examined(told: dict[str, Any]) -> Iterator[Finding]:
    for key in told["keys"]:
        ok = key["verdict"] == "accepted"
        why = "" if ok else f": {key['why']}"
        yield Finding(subject=f"key of {key['provider']}", ok=ok, told=f"{WORDS[key['verdict']]} {key['address']}{why}")
    if not told["keys"]:
        yield Finding(subject="keys", ok=None, told="none is set; only the provider `scripted` works without one")
    own = f", {told['own_prices']} prices of your own" if told["own_prices"] else ""
    yield Finding(subject="tables", ok=True, told=f"models as of {told['models_as_of']}, prices as of {told['prices_as_of']}{own}")
    yield from _evidence(told["evidence"])


def _evidence(told: dict[str, Any]) -> Iterator[Finding]:
    """Yield what evidence tools may use under the current settings."""
    yield Finding(
        subject="settings",
        ok=None if told["config"] is None else True,
        told=told["config"] or f"no {CONFIG_FILE} in this folder; defaults apply",
    )
    for each in told["sandboxes"]:
        yield Finding(subject=f"sandbox {each['name']}", ok=None if each["why_not"] else True, told=each["why_not"] or "works")
    chosen = {use: name or "none" for use, name in told["chosen"].items()}
    cure = None if told["chosen"]["programs"] else "install bubblewrap, or use Linux 5.13 or newer with Landlock"
    yield Finding(subject="sandbox", ok=told["chosen"]["snippets"] is not None, told=_pairs(chosen), cure=cure)
    yield Finding(subject="limits", ok=True, told=f"{_pairs(told['limits'])}; {told['concurrency']} calls at the same time")
    yield Finding(subject="tools", ok=True, told=", ".join(told["tools"]))
    for name, why in told["refused"].items():
        yield Finding(subject=f"tool {name}", ok=None, told=why)
    for subject in ("roots", "commands", "mcp"):
        if told[subject]:
            yield Finding(subject=subject, ok=True, told=_pairs(told[subject]))
    if told["hosts"]:
        yield Finding(subject="hosts", ok=True, told=", ".join(told["hosts"]))


def _pairs(values: dict[str, Any]) -> str:
    shown = {name: " ".join(map(str, each)) if isinstance(each, list) else each for name, each in values.items()}
    return ", ".join(f"{name} {each}" for name, each in shown.items() if each != "")


def lines(found: Finding) -> Iterator[Text]:
    """Yield a finding as lines for a terminal."""
    mark, style = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "dim")}[found.ok]
    yield Text(f"{mark} {found.subject}: ", style).append(printable(found.told), "default")
    if found.cure:
        yield Text(f"  {printable(found.cure)}", "yellow")
