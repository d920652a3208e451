"""The checks of `gradeloop doctor`: server, store, keys, sandboxes, tools and OTLP receiver of this machine."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rich.text import Text
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gradeloop.contract.base import Strict
from gradeloop.contract.model_spec import ModelConfig, ModelSpec
from gradeloop.contract.thread import SEARCH_ATTRIBUTES
from gradeloop.errors import GradeloopError, InvalidRequest
from gradeloop.extensions import packages
from gradeloop.settings.catalog import MODELS, PRICES, Price, ServerFacts, load_prices, read_catalogue
from gradeloop.settings.endpoints import DEFAULTS, default_model, keyed_providers
from gradeloop.settings.secrets import scrubbed
from gradeloop.settings.trust import CONFIG_FILE, TRUST_COMMAND, TRUST_FLAG
from gradeloop.settings.worker import ReceiverSettings
from gradeloop.store.engine import STORE_VARIABLE, Store, store_url
from gradeloop.store.upgrade import require_writable, version_of
from gradeloop.telemetry.health import parse_address
from gradeloop.temporal.connect import Connection, ask_worker, connect, find
from gradeloop.text import counted, printable

if TYPE_CHECKING:
    import httpx2

RETENTION = timedelta(days=30)
"""The shortest retention that lets a user resume a closed thread after a holiday."""

OLD = timedelta(days=60)
"""The age at which a table of models or prices no longer counts as today's."""

ANSWER_SECONDS = 10.0
"""Seconds that a server which was reached may take for all questions: a healthy one takes milliseconds."""

SHOWN_MODELS = 5
"""The models of a server that are named."""

KEY_VERDICTS = {
    "accepted": "accepted by",
    "refused": "refused by",
    "unreachable": "not checked: no answer from",
    "not installed": "not checked: package missing for",
    "not set": "none for",
    "not asked": "not checked: no list of models at",
}
"""The result of a key's check, before the address of its provider."""


class Finding(Strict):
    """The result of one check."""

    subject: str
    ok: bool | None
    """None if nothing is wrong but something is missing."""
    detail: str
    """The result, in one line."""
    cure: str | None = None


async def findings(*, trust: bool = False) -> AsyncIterator[Finding]:
    """Check server, store, default grader, keys, tables of models and prices, sandboxes and tools.

    Args:
        trust: Whether to trust the folder's gradeloop.toml first, so that its tools are checked, too.
    """
    try:
        connection = await find()
        client = await connect(connection)
    except GradeloopError as error:
        yield Finding(subject="server", ok=False, detail=str(error))
    else:
        for found in await _check_in_time(client, connection, ANSWER_SECONDS):
            yield found
    if os.environ.get(STORE_VARIABLE, "").strip():
        yield await asyncio.to_thread(_check_store)
    if others := packages():
        yield Finding(subject="extensions", ok=True, detail=", ".join(f"{name} ({package})" for name, package in others.items()))
    for found in _check_default_grader():
        yield found
    for found in await _check_worker(trust=trust):
        yield found


async def _check_in_time(client: Client, connection: Connection, seconds: float) -> list[Finding]:
    """Check the server, which may be there and answer no more, or not whole."""
    try:
        async with asyncio.timeout(seconds):
            await _check_history(client)
            return await _check_server(client, connection)
    except TimeoutError:
        detail = f"the server at {connection.address} was reached, but does not answer any more within {seconds:.0f} s"
    except RPCError as error:
        detail = f"the server at {connection.address} was reached, but does not do its work: {error.message}"
    return [Finding(subject="server", ok=False, detail=detail, cure="look at its log and its database's disk, and start it again")]


async def _check_history(client: Client) -> None:
    """Look for a workflow that is not there, for which the server has to read its histories; raise RPCError if it cannot."""
    try:
        await client.get_workflow_handle(f"gradeloop-doctor-{uuid4()}").describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


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


def _check_store() -> Finding:
    """Look whether the store that is named can be written by this gradeloop, without an upgrade of it."""
    try:
        store = Store(store_url(embedded=False), upgrade=False)
        with closing(store):
            if (store.file is not None and not store.file.exists()) or not (version := store.do(version_of)):
                return Finding(subject="store", ok=None, detail=f"{store.name} is empty; the first batch makes its tables")
            store.do(require_writable)
    except GradeloopError as error:
        return Finding(subject="store", ok=False, detail=scrubbed(str(error)))
    return Finding(subject="store", ok=True, detail=f"{store.name}, version {version}, can be written")


async def _check_search_attributes(client: Client) -> Finding:
    try:
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    except RPCError as error:
        return Finding(subject="search attributes", ok=None, detail=f"not visible with these credentials ({error.message})")
    absent = [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
    if absent:
        return Finding(subject="search attributes", ok=None, detail=f"{', '.join(absent)} are not registered yet; a worker registers them")
    return Finding(subject="search attributes", ok=True, detail=", ".join(SEARCH_ATTRIBUTES))


def _check_default_grader() -> Iterator[Finding]:
    """Yield which model judges where none is named, and all rules by which it is found, each with its price."""
    own = os.environ.get(PRICES, "").strip()
    try:
        table = load_prices(Path(own) if own else None)
        models = read_catalogue(os.environ.get(MODELS, "").strip())
    except GradeloopError as error:
        yield Finding(subject="tables", ok=False, detail=str(error))
        return
    chosen = default_model(os.environ)
    if chosen is None:
        cure = "set a provider's key, or give grader.model in every request"
        yield Finding(subject="default grader", ok=None, detail="none: no provider key is set", cure=cure)
    else:
        price, gone = table.price(chosen.spec), next((row for row in models.retired if row.names(chosen.spec)), None)
        detail = f"{chosen.spec.id}, because {chosen.variable} is set; {_dollars(price)}"
        absent = f"add its price to the file that {PRICES} names; until then a budget in money is refused for it"
        yield Finding(subject="default grader", ok=True if price else None, detail=detail, cure=None if price else absent)
        if gone and gone.on <= datetime.now(UTC).date():
            yield Finding(subject="default grader", ok=None, detail=f"{chosen.spec.id} was retired on {gone.on}; name another")
    specs = [(rule, ModelSpec(id=rule.model, config=ModelConfig(base_url=rule.base_url or None))) for rule in DEFAULTS]
    rules = [f"{' + '.join(rule.variables)}: {rule.model} ({_dollars(table.price(spec))})" for rule, spec in specs]
    yield Finding(subject="default graders", ok=None, detail="; ".join(rules))


def _dollars(price: Price | None) -> str:
    return f"${price.input:g} in, ${price.output:g} out a million tokens" if price else "its price is not known"


async def _check_worker(*, trust: bool) -> list[Finding]:
    """Run a worker process, which has the providers' packages, to check keys, tables and sandboxes."""
    try:
        report = await ask_worker("machine", *([TRUST_FLAG] if trust else []))
    except GradeloopError as error:
        return [Finding(subject="worker", ok=False, detail=str(error))]
    receiver = report["receiver"]
    return [*_read_examination(report), await receiver_finding(ReceiverSettings.model_validate(receiver) if receiver else None, os.environ)]


def _read_examination(report: dict[str, Any]) -> Iterator[Finding]:
    for key in report["keys"]:
        ok = None if key["verdict"] == "not asked" else key["verdict"] == "accepted"
        why = "" if ok else f": {key['why']}"
        yield Finding(subject=f"key of {key['provider']}", ok=ok, detail=f"{KEY_VERDICTS[key['verdict']]} {key['address']}{why}")
    if not report["keys"]:
        yield Finding(subject="keys", ok=None, detail="none is set; model servers of your own and the provider `scripted` need none")
    for server in report["servers"]:
        yield server_finding(server["address"], ServerFacts.model_validate(server["facts"]))
    for key in report["keys"]:
        if key["retiring"]:
            detail = f"{key['provider']} lists models that it retires: {', '.join(key['retiring'])}"
            yield Finding(subject="retired models", ok=None, detail=detail, cure="name others before that day")
        if key["unpriced"]:
            detail = f"{key['provider']} lists models without a price: {', '.join(key['unpriced'])}"
            yield Finding(subject="missing prices", ok=None, detail=detail, cure=f"add those that you use to the file that {PRICES} names")
    yield tables_finding(report, datetime.now(UTC).date())
    yield _retired_finding(datetime.now(UTC).date())
    yield from _read_evidence(report["evidence"])


def server_finding(address: str, facts: ServerFacts) -> Finding:
    """Return what is known of a local model server."""
    bounds = {"all": ", with its bounds", "lists": ", with the lengths of its lists", "none": ""}[facts.bounds]
    schema = {"schema": f"a schema is enforced{bounds}", "tagged": "no schema is enforced", None: "no schema was tried"}[facts.answer]
    known = {"context of {} tokens": facts.context, "{} slots": facts.slots, "streams": facts.stream, "reasons": facts.reasons}
    names = ", ".join(facts.models[:SHOWN_MODELS]) + (f" and {rest} more" if (rest := len(facts.models) - SHOWN_MODELS) > 0 else "")
    detail = "; ".join([names, *(text.format(value) for text, value in known.items() if value), schema])
    return Finding(subject=f"server {facts.kind}", ok=True, detail=f"at {address}: {detail}")


def tables_finding(report: dict[str, Any], today: date) -> Finding:
    """Return when the tables of models and prices were made, and that they are old where they are."""
    dates = {"models": report["models_as_of"], "prices": report["prices_as_of"]}
    shown = f"models as of {dates['models']}, prices as of {dates['prices']} (genai-prices {report['published_prices']})"
    for kind in ("models", "prices"):
        if report[f"own_{kind}"]:
            as_of = report[f"own_{kind}_as_of"]
            dates |= {f"your {kind}": as_of} if as_of else {}
            shown += f", {counted(report[f'own_{kind}'], 'row')} of your own for {kind}" + (f" as of {as_of}" if as_of else "")
    ages = {name: (today - date.fromisoformat(as_of)).days for name, as_of in dates.items()}
    if not (old := [f"{name} {days} days" for name, days in ages.items() if days > OLD.days]):
        return Finding(subject="tables", ok=True, detail=shown)
    cure = f"upgrade gradeloop and genai-prices, or name newer rows by {MODELS} and {PRICES}"
    return Finding(subject="tables", ok=None, detail=f"{shown}; older than {OLD.days} days: {', '.join(old)}", cure=cure)


def _retired_finding(today: date) -> Finding:
    """Return the models of the providers whose keys are set that are no longer served, or all of them where no key is set."""
    keyed = keyed_providers(os.environ)
    retired = read_catalogue(os.environ.get(MODELS, "").strip()).retired
    rows = [row for row in retired if row.on <= today and (not keyed or row.provider in keyed)]
    shown = "; ".join(f"{row.provider} since {row.on}: {', '.join(row.models)}" for row in rows)
    return Finding(subject="retired", ok=True, detail=f"no longer served: {shown}" if shown else "none of the providers' models")


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


async def receiver_finding(settings: ReceiverSettings | None, environment: Mapping[str, str]) -> Finding:
    """Return whether the OTLP receiver answers on this machine, takes requests and reaches its store.

    `settings`: the receiver's settings; None where none is set up.
    """
    if settings is None:
        place = ReceiverSettings().address
        return _receiver(ok=None, detail=f"none is set up; `gradeloop dev` receives OTLP at {place}, where that is free")
    try:
        token = settings.read_token(environment)
    except InvalidRequest as error:
        return _receiver(ok=False, detail=str(error))
    host, port = parse_address(settings.address, "receiver.address")
    if port == 0:
        detail = f"receiver.address {settings.address!r} leaves the port to the system, so that nobody knows where to ask"
        return _receiver(ok=None, detail=detail, cure="name a port in receiver.address")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not to listen, but to ask who does
    return await _ask_in_time(f"http://{f'[{host}]' if ':' in host else host}:{port}", settings.token, token)


async def _ask_in_time(url: str, variable: str | None, token: str | None) -> Finding:
    """Ask the process at a receiver's address, which may be missing or silent."""
    import httpx2  # here, since every command loads this module

    try:
        async with asyncio.timeout(ANSWER_SECONDS), httpx2.AsyncClient(base_url=url, trust_env=False, timeout=None) as http:
            return await _ask_receiver(http, url, variable, token)
    except TimeoutError:
        detail = f"the receiver at {url} was reached, but does not answer within {ANSWER_SECONDS:g} s"
        return _receiver(ok=False, detail=detail, cure="look at its log, and start it again")
    except httpx2.ConnectError:
        return _receiver(ok=False, detail=f"nobody answers at {url}", cure="start one: gradeloop worker --role receiver, or gradeloop dev")
    except httpx2.HTTPError:
        return _other_than_receiver(url)


async def _ask_receiver(http: "httpx2.AsyncClient", url: str, variable: str | None, token: str | None) -> Finding:
    """Ask whether it is ready, which tells it from others, and then whether it takes a request without spans, which leaves no trace."""
    ready = await http.get("/readyz")
    checks = _document(ready).get("checks")
    if not isinstance(checks, dict) or set(checks) != {"store"}:
        return _other_than_receiver(url)
    if checks["store"] != "ok":
        detail = f"the receiver at {url} is not ready: store: {scrubbed(str(checks['store']))}"
        return _receiver(ok=False, detail=detail, cure=f"start the store, or correct {STORE_VARIABLE} of the receiver")
    answer = await http.post("/v1/traces", json={}, headers={"Authorization": f"Bearer {token}"} if token else {})
    if answer.status_code == HTTPStatus.OK:
        return _receiver(ok=True, detail=f"takes OTLP at {url}, and reaches its store")
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        does = f"refuses the token in {variable}" if token else "asks for a token, and receiver.token names none"
        same = "give exporters and receiver the same token, and start the receiver again"
        cure = same if token else "name the variable with its token in receiver.token"
        return _receiver(ok=False, detail=f"the receiver at {url} {does}", cure=cure)
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return _other_than_receiver(url)
    why = scrubbed(str(_document(answer).get("message", "")))
    return _receiver(ok=False, detail=f"the receiver at {url} takes nothing: {f'{why} ' if why else ''}(HTTP {answer.status_code})")


def _document(answer: "httpx2.Response") -> dict[str, Any]:
    """Return the JSON object that an answer holds; an empty one where it holds none."""
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _other_than_receiver(url: str) -> Finding:
    detail = f"what answers at {url} is not a receiver of gradeloop"
    return _receiver(ok=False, detail=detail, cure="stop it, or give the receiver another receiver.address")


def _receiver(*, ok: bool | None, detail: str, cure: str | None = None) -> Finding:
    return Finding(subject="receiver", ok=ok, detail=detail, cure=cure)


def _pairs(values: dict[str, Any]) -> str:
    shown = {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value != "")


def lines(found: Finding) -> Iterator[Text]:
    """Yield a finding as lines for a terminal."""
    mark, style = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "dim")}[found.ok]
    yield Text(f"{mark} {found.subject}: ", style).append(printable(found.detail), "default")
    if found.cure:
        yield Text(f"  {printable(found.cure)}", "yellow")
