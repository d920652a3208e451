"""The worker process: settings in, a running Temporal worker out. `build` is what tests run too."""

import gc

if __name__ == "__main__":
    gc.disable()  # until all is loaded (`LoadedObjects`): searching what stays for garbage takes a sixth of the start

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    ResourceBasedSlotConfig,
    Worker,
    WorkerDeploymentConfig,
    WorkerTuner,
)

from activities.calls.attempts import AbandonedAttempts
from activities.calls.limiter import CallLimiter
from activities.calls.pace import SharedPaces
from activities.calls.paid_call import ModelCalls
from activities.calls.tenant_budgets import TenantBudgets
from activities.capabilities import CapabilityActivities, WorkerCapabilities, WorkerServices
from activities.capabilities import refusals as explain_refusals
from activities.errors import store_away
from activities.generate import GeneratorActivities
from activities.grade import GraderActivities
from activities.notify import NotifyActivities
from activities.providers import Providers, examine
from activities.providers.environment import Environment
from activities.providers.scripted import Recording, Script
from activities.state_cache import ThreadLoader
from activities.tool_call import TranscriptActivities, find_worker, tool_activity
from activities.tools.base import ToolContext
from activities.tools.mcp import McpServers
from activities.tools.registry import ToolRegistry, describe_tools
from gradeloop.contract.notice import Webhooks
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, StoreUnavailable, WorkerFailed, installed
from gradeloop.exit_codes import INTERNAL, leave
from gradeloop.extensions import WorkerContext, parts
from gradeloop.grading.checks import CHECKS
from gradeloop.sandbox.choice import SandboxChoice, choose_sandboxes
from gradeloop.settings.endpoints import PROVIDERS_VARIABLE, NamedEndpoint, endpoint_ceilings, named_endpoints
from gradeloop.settings.secrets import scrubbed
from gradeloop.settings.trust import read_flag
from gradeloop.settings.worker import WorkerSettings, load_settings
from gradeloop.store.engine import STORE_VARIABLE, Pool, Store, store_url
from gradeloop.store.engine import own_store as receivers_store
from gradeloop.store.fleet import Fleet
from gradeloop.telemetry.health import Check, HealthChecks, parse_address, serving_health
from gradeloop.telemetry.logs import LOG_VARIABLE, configure_logging, set_ids, workflow_ids
from gradeloop.telemetry.metrics import WORKER_SLOTS
from gradeloop.temporal.child_workers import find_child_workers, input_ended
from gradeloop.temporal.connect import PROVIDER_VARIABLES, Connection, check_server, connect, find, follow_credentials, is_embedded
from gradeloop.temporal.process import beside
from gradeloop.temporal.runtime import client_runtime, export_metrics, metrics_exporter, register_search_attributes
from gradeloop.temporal.store_gate import WORKFLOW_SLOTS, StoreGate
from gradeloop.temporal.worker_process import LoadedObjects, QueueWatch, ReadyFile, report_failure, sample
from workflows.grading_thread import GradingThreadWorkflow
from workflows.notices import NoticesWorkflow
from workflows.run_ahead import Activations, RecordedTasksRunner
from workflows.visibility import TenantAttribute

logger = logging.getLogger("gradeloop.worker")

WORKFLOWS = (GradingThreadWorkflow, NoticesWorkflow)
"""The workflows of the core; extensions bring theirs."""


class _Admission(Interceptor):
    """Gives the records of every activity its ids, and hands back those that come through a closed gate."""

    def __init__(self, gate: StoreGate | None, abandoned: AbandonedAttempts) -> None:
        self.gate, self.abandoned = gate, abandoned

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        return _AdmittedActivity(next, self)


class _AdmittedActivity(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, admission: _Admission) -> None:  # noqa: A002 - the SDK's name
        super().__init__(next)
        self._admission = admission

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        """Run an activity, in a task of its own, whose ids stay: the SDK logs afterwards how it ended."""
        # While the store is away the gate polls for nothing, but tasks that were taken before, or come eagerly
        # with a workflow task, still arrive. They go back for another attempt before they spend money that
        # could not be written down. Two kinds run all the same: calls with a bounded number of attempts, which
        # this would use up, and calls that have left a paid reply on this worker.
        info, argument = activity.info(), input.args[0] if input.args else None
        problem = self._admission.gate.problem if self._admission.gate is not None else None
        # Whose attempts are counted, or whose earlier attempt left something on this worker, runs all the same.
        if problem and not (info.retry_policy and info.retry_policy.maximum_attempts) and not self._admission.abandoned.knows_call():
            raise store_away(StoreUnavailable(problem))
        ids: dict[str, str | int] = {}
        if info.workflow_id and info.workflow_run_id:
            ids |= workflow_ids(info.workflow_type or "", info.workflow_id, info.workflow_run_id)
        fields = getattr(argument, "__dict__", {})  # a pydantic model writes an error for each field that it lacks
        known = {"batch": fields.get("batch_id"), "case": fields.get("position")}
        known |= {name: getattr(fields.get("step"), name, None) for name in ("run", "iteration")}
        ids |= {name: value for name, value in known.items() if isinstance(value, str | int)}
        set_ids({**ids, "call": info.activity_id, "activity": info.activity_type, "attempt": info.attempt})
        return await super().execute_activity(input)


def build(  # noqa: PLR0913 - one argument a part of the worker
    client: Client,
    providers: Providers,
    tools: ToolRegistry,
    settings: WorkerSettings | None = None,
    *,
    search_attributes: bool = True,
    store: Store | None = None,
    activations: Activations | None = None,
    fleet: Fleet | None = None,
) -> Worker:
    """Return a worker that serves threads on `client`.

    `store`: the store of the cases and results of batches; without one batches are refused.
    `fleet`: registers it in the store; by default as a worker of the settings' slots.
    """
    settings = settings or WorkerSettings()
    evidence, versioning = settings.role == "evidence", _versioning(settings)
    runs_workflows, services, _ = settings.role in {"all", "loop"}, None, CHECKS.rows  # loaded here, never first within a workflow's task
    activities: list[Callable[..., Any]] = [tool_activity(tool) for tool in tools] if settings.role in {"all", "evidence"} else []
    if settings.role in {"all", "models"}:
        notices = NotifyActivities(settings.notify, os.environ)
        services = _services(client, providers, tools, settings, search_attributes, store, notices.offered)
        activities += [
            CapabilityActivities(services).admit,
            GeneratorActivities(services).generate,
            GraderActivities(services).grade,
            TranscriptActivities(services.threads).read_transcript,
            notices.notify,
            find_worker,
        ]
    context = WorkerContext(client, runs_workflows, services, store, fleet or _fleet(settings, store))
    gate, abandoned = StoreGate(store) if store is not None else None, services.calls.abandoned if services else AbandonedAttempts()
    ours = [SimplePlugin("fleet", run_context=context.fleet.registered), *([gate] if gate is not None else [])]
    return Worker(
        client,
        task_queue=settings.evidence_queue if evidence else settings.task_queue,
        workflows=list(WORKFLOWS) if runs_workflows else [],
        activities=activities,
        plugins=[*ours, *(plugin(context) for plugin in parts(lambda extension: extension.worker))],
        # The sandbox would load workflows/ anew for every thread, a third of a short run's CPU; ruff's bans and a test guard them instead.
        workflow_runner=RecordedTasksRunner(versioned=versioning is not None, activations=activations),
        deployment_config=versioning,
        interceptors=[_Admission(gate, abandoned), TenantAttribute(registered=search_attributes)],
        tuner=_tuner(settings, gate),
        max_task_queue_activities_per_second=settings.max_calls_per_second,
        # An eager call bypasses the queue, and with it the rate limit and the turns of other tenants.
        disable_eager_activity_execution=settings.max_calls_per_second is not None,
        max_cached_workflows=settings.max_cached_workflows,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        max_heartbeat_throttle_interval=timedelta(seconds=2),
        graceful_shutdown_timeout=timedelta(seconds=settings.drain_seconds),
    )


def _fleet(settings: WorkerSettings, store: Store | None) -> Fleet:
    return Fleet(store if settings.role in {"all", "models"} else None, settings.task_queue, settings.max_concurrent_activities)


def _versioning(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """Return the worker's version; None where it has none, and for a worker that ends itself: nobody makes its build current."""
    if settings.deployment is None or settings.build_id is None or settings.until_idle is not None:
        return None
    version = WorkerDeploymentVersion(settings.deployment, settings.build_id)
    return WorkerDeploymentConfig(version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED)


def _tuner(settings: WorkerSettings, gate: StoreGate | None) -> WorkerTuner:
    """Return what gives a worker fewer slots where its machine is short of memory or processors, or none while its store cannot be used."""
    most = settings.max_concurrent_activities
    if settings.tuner is None:
        return gate.tuner(most) if gate is not None else WorkerTuner.create_fixed(activity_slots=most)
    return WorkerTuner.create_resource_based(
        target_memory_usage=settings.tuner.memory,
        target_cpu_usage=settings.tuner.cpu,
        activity_config=ResourceBasedSlotConfig(minimum_slots=1, maximum_slots=most),
    )


def _services(
    client: Client,
    providers: Providers,
    tools: ToolRegistry,
    settings: WorkerSettings,
    search_attributes: bool,
    store: Store | None,
    webhooks: Webhooks,
) -> WorkerServices:
    """Return what the activities that call models work with."""
    capabilities = WorkerCapabilities(
        search_attributes=search_attributes,
        external_storage=client.data_converter.external_storage is not None,
        evidence_queue=settings.evidence_queue if settings.role == "models" else None,
        webhooks=webhooks,
    )
    recording = Recording(settings.record, providers.secrets) if settings.record else None
    paces = SharedPaces(store) if store is not None and store.shared else None
    limiter = CallLimiter(endpoint_ceilings(settings.providers) | settings.limits, settings.max_concurrent_activities, paces)
    budgets = TenantBudgets(settings.tenant_budgets, store)
    calls = ModelCalls(providers, recording, settings.outage_timeout, limiter, budgets, search_attributes)
    return WorkerServices(calls, tools, ThreadLoader(), capabilities)


async def serve(settings: WorkerSettings) -> None:
    """Run a worker until a signal stops it, or it has been idle for as long as its settings say; its ready file goes with it."""
    ready = ReadyFile(settings.ready_file)
    if settings.role == "receiver":
        await _receive(settings, ready)
        return
    script = Script.read(settings.scripted) if settings.scripted else None
    environment = Environment.read({}) if settings.role == "evidence" else _environment(settings)
    providers = Providers(environment, script, call_timeout=settings.call_timeout)
    providers.on_refused_key, providers.probe = ready.note_refused, settings.probe == "on"
    if settings.role == "evidence":
        withhold_keys(named_endpoints(settings.providers).values(), settings.role)
    if settings.role == "loop":  # it runs only workflows, and no tools
        await _serve(settings, providers, ToolRegistry(), ready, {})
    else:
        choice = await asyncio.to_thread(find_sandboxes, settings)
        for sentence in choice.replaced():
            logger.warning("%s", sentence)

        async def check_sandboxes() -> None:
            if choice.snippets is None:
                raise WorkerFailed(f"no sandbox works: {choice.why_not()}")

        async def check_keys() -> None:
            if lacking := environment.missing_keys():
                raise WorkerFailed(f"no key for {'; '.join(lacking)}")

        checks: dict[str, Check] = {"sandboxes": check_sandboxes} if settings.role in {"all", "evidence"} else {}
        checks |= {"keys": check_keys} if settings.role in {"all", "models"} else {}
        async with McpServers(settings.mcp) as servers:
            await _serve(settings, providers, ToolRegistry.load(settings.tools, ToolContext(settings, choice), servers), ready, checks)


def find_sandboxes(settings: WorkerSettings, *, all_of_them: bool = False) -> SandboxChoice:
    """Return those sandboxes of the settings that pass their self-test on this machine."""
    return choose_sandboxes(settings.sandbox.use, [str(path) for path in settings.sandbox.read_only], all_of_them=all_of_them)


def withhold_keys(endpoints: Iterable[NamedEndpoint], role: str) -> None:
    """Remove the providers' keys from this process's environment: a worker of role evidence or receiver calls no model."""
    of_endpoints = {PROVIDERS_VARIABLE, *(name for endpoint in endpoints for name in endpoint.secret_variables)}
    for name in [name for name in os.environ if name.startswith(PROVIDER_VARIABLES) or name in of_endpoints]:
        logger.warning("%s is set; a worker of role %s does without it", name, role)
        del os.environ[name]


async def _serve(
    settings: WorkerSettings, providers: Providers, tools: ToolRegistry, ready: ReadyFile, checks: Mapping[str, Check]
) -> None:
    connection = await find()
    exporter = metrics_exporter(settings.metrics_address, os.environ)
    export_metrics(exporter)
    client = await connect(connection)
    WORKER_SLOTS.record(settings.max_concurrent_activities, type="activity")
    WORKER_SLOTS.record(WORKFLOW_SLOTS, type="workflow")
    store = own_store(connection, settings)
    attributes, activations, fleet = settings.search_attributes == "on", Activations(), _fleet(settings, store)
    if attributes:
        await register_search_attributes(client)
    worker = build(client, providers, tools, settings, search_attributes=attributes, store=store, activations=activations, fleet=fleet)
    watch, stopped = QueueWatch(client, settings.task_queue, ready), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await watch.note_last_poll()
    children = find_child_workers(settings, sys.argv[1:], lambda: not providers.counts_slots)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(children.stopped)
        await stack.enter_async_context(worker)
        if settings.health_address:
            stack.enter_context(_health(settings.health_address, client, store, checks, lambda: activations.longest))
        if exporter is not None:
            sampling = asyncio.create_task(sample(client, worker.task_queue, store))
            stack.callback(sampling.cancel)
        if connection.options:
            following = asyncio.create_task(follow_credentials(client, connection, lambda: setattr(worker, "client", client)))
            stack.callback(following.cancel)
        stack.enter_context(LoadedObjects().gc_freeze())
        if settings.role in {"all", "loop"}:
            await watch.until_polled()
        try:
            ready.announce()
            logger.info("serving task queue %s on %s as %s", worker.task_queue, client.service_client.config.target_host, settings.role)
            async with beside(children.start_when_busy(), _has_ended(settings, watch, stopped)):
                await stopped.wait()
            # The order of a stop: the store learns first that this worker takes no more calls, so that batches
            # lower their places and its end is not a loss. Then the ready file goes. Last the worker stops
            # polling, and gives its calls the drain time.
            fleet.leave()
            children.stop()
        finally:
            ready.withdraw()
    await providers.aclose()


async def _has_ended(settings: WorkerSettings, watch: QueueWatch, stopped: asyncio.Event) -> None:
    """Set `stopped` once nobody needs this worker any more, as far as its settings have it looked at."""
    if settings.until_input_ends:  # a variable may name a time for idling, too
        await input_ended(stopped)
    elif settings.until_idle is not None:
        await watch.until_idle(settings.until_idle, stopped)


async def _receive(settings: WorkerSettings, ready: ReadyFile) -> None:
    """Receive traces until a signal ends it; this needs no Temporal server."""
    with installed("the receiver needs some packages; run: pip install 'gradeloop[receiver]'", "starlette", "uvicorn", "opentelemetry"):
        open_receiver = next(parts(lambda extension: extension.receives), None)
    if open_receiver is None:
        raise InvalidRequest("no extension that is installed receives traces; install the whole of gradeloop")
    withhold_keys(named_endpoints(settings.providers).values(), settings.role)
    export_metrics(exporter := metrics_exporter(settings.metrics_address, os.environ))
    if exporter is not None:
        client_runtime()  # exports them, and no client of Temporal starts it here
    store, stopped = receivers_store(durable=True, pool=_pool(settings)), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    receiving = open_receiver(settings.receiver, os.environ)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(store.close)
        url = await stack.enter_async_context(receiving(store))
        if settings.health_address:
            stack.enter_context(_health(settings.health_address, None, store, {}))
        stack.enter_context(LoadedObjects().gc_freeze())
        try:
            ready.announce()
            logger.info("receiving OTLP at %s, into %s", url, store.name)
            await stopped.wait()
        finally:
            ready.withdraw()


@contextlib.contextmanager
def _health(
    address: str, client: Client | None, store: Store | None, more: Mapping[str, Check], longest_step: Callable[[], float] = float
) -> Iterator[None]:
    """Answer probes while the block runs."""
    checks: dict[str, Check] = {} if client is None else {"server": lambda: check_server(client)}
    if store is not None:
        checks["store"] = store.ping
    with serving_health(parse_address(address, "health_address"), HealthChecks({**checks, **more}, scrubbed), longest_step) as url:
        logger.info("health at %s/healthz and %s/readyz", url, url)
        yield


def own_store(connection: Connection, settings: WorkerSettings) -> Store | None:
    """Return the store that the environment names, or the one beside the embedded server; None where there is neither."""
    ours = is_embedded(connection)
    named = ours or os.environ.get(STORE_VARIABLE, "").strip()
    return Store(store_url(embedded=ours), pool=_pool(settings)) if named else None


def _pool(settings: WorkerSettings) -> Pool:
    return Pool(**settings.store_pool.model_dump())


async def refusals(settings: WorkerSettings, asked: str | bytes) -> list[str | None]:
    """Return for each of some threads' settings or cases, as JSON, why a worker would refuse it, keys aside; None where it would not."""
    providers = Providers(_environment(settings), Script.read(settings.scripted) if settings.scripted else None)
    providers.needs_keys = False
    tools = ToolRegistry.looked_at(settings.tools, ToolContext(settings, await asyncio.to_thread(find_sandboxes, settings)))
    capabilities = WorkerCapabilities(search_attributes=False, external_storage=False)
    services = WorkerServices(ModelCalls(providers), tools, ThreadLoader(), capabilities)
    return await explain_refusals(services, asked)


def _environment(settings: WorkerSettings) -> Environment:
    return Environment.read(os.environ, settings.providers, settings.local_servers)


async def _examine(settings: WorkerSettings) -> None:
    if settings.examine == "requests":
        print(json.dumps(await refusals(settings, sys.stdin.buffer.read())))  # noqa: T201 - the answer that is asked for
        return
    choice = await asyncio.to_thread(find_sandboxes, settings, all_of_them=True)
    report = (await examine(_environment(settings))).model_dump(mode="json")
    context = ToolContext(settings, choice)
    async with McpServers(settings.mcp) as servers:
        report["evidence"] = describe_tools(context, ToolRegistry.load(settings.tools, context, servers))
    asked_for = settings.role == "receiver" or settings.receiver.model_fields_set
    report["receiver"] = settings.receiver.model_dump(mode="json") if asked_for else None
    print(json.dumps(report))  # noqa: T201 - the report that --examine asks for


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker and return the process's exit code."""
    configure_logging("json" if os.environ.get(LOG_VARIABLE) == "json" else "text", scrubbed)  # what the settings say comes from them
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        settings = load_settings(given)
        configure_logging(settings.log, scrubbed)
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_examine(settings) if settings.examine else serve(settings))
    except GradeloopError as error:
        print(scrubbed(str(error)), file=sys.stderr)  # noqa: T201 - the process's last words
        ready_file = read_flag(given, "--ready-file")  # also where the settings themselves are wrong
        report_failure(Path(ready_file) if ready_file else None, error)
        return 4 if isinstance(error, ServerUnreachable) else 3 if isinstance(error, WorkerFailed) else 2
    except Exception:
        logger.exception("the worker ends")  # what Python itself would print shows the keys that an error quotes
        return INTERNAL
    return 0


if __name__ == "__main__":
    leave(main())
