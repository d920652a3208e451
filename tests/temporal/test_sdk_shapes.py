"""The parts of SDKs that gradeloop uses and that the SDKs do not promise: an upgrade that changes one is named here first."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from importlib.metadata import version

import httpx2
import pytest
from httpcore2 import AsyncConnectionPool
from temporalio import activity, workflow
from temporalio.bridge.proto import workflow_completion as completion
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import QueryResult, WorkflowCommand
from temporalio.client import Client
from temporalio.service import ServiceClient
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._workflow import _WorkflowWorker

from gradeloop.temporal import runtime
from gradeloop.temporal.runtime import ClosableService
from tests.rig.tables import over
from workflows.run_ahead import FROM_EVENTS, TAKES_BACK, WRITES, ReplayGuard

JOBS = {
    "cancel_workflow", "do_update", "initialize_workflow", "notify_has_patch", "query_workflow", "remove_from_cache", "resolve_activity",
    "resolve_child_workflow_execution", "resolve_child_workflow_execution_start", "resolve_nexus_operation",
    "resolve_nexus_operation_start", "resolve_request_cancel_external_workflow", "resolve_signal_external_workflow", "update_random_seed",
} | FROM_EVENTS  # fmt: skip
"""The jobs of an activation, all of them: the guard has to know which ones only new events of the history bring."""

COMMANDS = {
    "cancel_signal_workflow", "cancel_workflow_execution", "complete_workflow_execution", "continue_as_new_workflow_execution",
    "fail_workflow_execution", "modify_workflow_properties", "request_cancel_external_workflow_execution", "request_cancel_local_activity",
    "request_cancel_nexus_operation", "respond_to_query", "schedule_local_activity", "schedule_nexus_operation", "set_patch_marker",
    "signal_external_workflow_execution", "update_response",
} | WRITES | TAKES_BACK  # fmt: skip
"""The commands of a completion, all of them: the guard counts which ones write events."""


@dataclass(frozen=True)
class Shape:
    """The names in a part of an SDK on which some module of ours relies."""

    part: str
    relies: str
    found: Callable[[], set[str]]
    expected: set[str]
    whole: bool = False
    """Whether a new name is a change, too."""

    def changes(self) -> list[str]:
        """Return what has changed, in words."""
        try:
            there = self.found()
        except (AttributeError, ImportError, KeyError, TypeError) as error:
            return [f"{self.part} is not there any more: {error}"]
        new = sorted(there - self.expected) if self.whole else []
        return [*(f"gone: {name}" for name in sorted(self.expected - there)), *(f"new: {name}" for name in new)]


def signatures(owner: type, *names: str) -> set[str]:
    """Return the methods that a class has, with the names of their parameters; without names the public ones that it defines itself."""
    chosen = names or tuple(name for name, value in vars(owner).items() if inspect.isfunction(value) and not name.startswith("_"))
    return {f"{name}({', '.join(inspect.signature(getattr(owner, name)).parameters)})" for name in chosen}


def members(message: type) -> set[str]:
    """Return the fields of a message."""
    return set(message.DESCRIPTOR.fields_by_name)  # type: ignore[attr-defined]  # what every message has


def variants(message: type) -> set[str]:
    """Return the fields of which a message has one."""
    return {field.name for field in message.DESCRIPTOR.oneofs_by_name["variant"].fields}  # type: ignore[attr-defined]  # as above


def mentioned(method: Callable[..., object]) -> set[str]:
    """Return the names of the attributes and functions that a method mentions."""
    return set(method.__code__.co_names)


GUARD, PROXY, POOLS = "workflows/run_ahead.py", "gradeloop/temporal/runtime.py", "activities/providers/http.py"

TEMPORAL = [
    Shape("WorkflowInstance", GUARD, lambda: signatures(WorkflowInstance), signatures(ReplayGuard), whole=True),
    Shape("WorkflowInstanceDetails", GUARD, lambda: {field.name for field in fields(WorkflowInstanceDetails)}, {"defn"}),
    Shape("workflow._Definition", GUARD, lambda: {field.name for field in fields(workflow._Definition)}, {"name", "versioning_behavior"}),
    Shape("_command_aware_visitor", GUARD, lambda: set(vars(import_module("temporalio.worker._command_aware_visitor"))), {"CommandInfo"}),
    Shape(
        "WorkflowActivation",
        GUARD,
        lambda: members(WorkflowActivation),
        {"run_id", "timestamp", "is_replaying", "history_length", "jobs"},
    ),
    Shape("WorkflowActivationJob", GUARD, lambda: variants(WorkflowActivationJob), JOBS, whole=True),
    Shape("WorkflowCommand", GUARD, lambda: variants(WorkflowCommand), COMMANDS, whole=True),
    Shape("QueryResult", GUARD, lambda: members(QueryResult), {"query_id", "failed"}),
    Shape(
        "WorkflowActivationCompletion",
        GUARD,
        lambda: members(completion.WorkflowActivationCompletion) | members(completion.Success) | members(completion.Failure),
        {"run_id", "successful", "failed", "commands", "failure"},
    ),
    Shape(
        "ServiceClient",
        PROXY,
        lambda: signatures(ServiceClient, "_rpc_call", "update_rpc_metadata", "update_api_key"),
        signatures(ClosableService, "_rpc_call", "update_rpc_metadata", "update_api_key"),
    ),
    Shape(
        "activity._Definition",
        "activities/tools/mcp.py",
        lambda: set(vars(activity._Definition)) | {field.name for field in fields(activity._Definition)},
        {"from_callable", "name"},
    ),
    Shape("_WorkflowWorker", "rig/fixtures.py", lambda: mentioned(_WorkflowWorker.__init__), {"_deadlock_timeout_seconds"}),
]

HTTP = [
    Shape("AsyncClient", POOLS, lambda: set(vars(httpx2.AsyncClient())), {"_transport"}),
    Shape("AsyncHTTPTransport", POOLS, lambda: set(vars(vars(httpx2.AsyncClient())["_transport"])), {"_pool"}),
    Shape("AsyncHTTPTransport", POOLS, lambda: mentioned(httpx2.AsyncHTTPTransport.handle_async_request), {"_pool"}),
    Shape("AsyncConnectionPool", POOLS, lambda: set(vars(AsyncConnectionPool())), {"_ssl_context", "_network_backend"}),
]


def google_client() -> set[str]:
    genai = pytest.importorskip("google.genai")
    return set(dir(genai.Client(api_key="none")._api_client))


GOOGLE = [
    Shape("Client._api_client", "activities/providers", google_client, {"vertexai", "async_request", "async_request_streamed"}),
]


@over(
    ("package", "shape"),
    [(package, shape) for package, shapes in (("temporalio", TEMPORAL), ("httpx2", HTTP), ("google-genai", GOOGLE)) for shape in shapes],
)
def test_what_an_sdk_does_not_promise_is_as_we_know_it(package: str, shape: Shape) -> None:
    assert shape.changes() == [], f"{package} {version(package)} has changed {shape.part}, on which {shape.relies} relies"


async def test_the_sdks_connection_and_runtime_can_be_dropped(client: Client) -> None:
    service = client.service_client
    assert isinstance(service, ClosableService)
    for first, names in ((vars(service)["_inner"], ("_bridge_client", "_ref")), (runtime.client_runtime(), ("_core_runtime", "_ref"))):
        owner = first
        for name in names:
            shape = Shape(type(owner).__name__, PROXY, partial(set, vars(owner)), {name})
            assert shape.changes() == [], f"temporalio {version('temporalio')} has changed {shape.part}, on which {PROXY} relies"
            owner = vars(owner)[name]


def test_a_changed_shape_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = TEMPORAL[0]
    monkeypatch.delattr(WorkflowInstance, "get_thread_id")
    monkeypatch.setattr(WorkflowInstance, "get_info", lambda self, whole: None)
    monkeypatch.setattr(WorkflowInstance, "suspend", lambda self: None, raising=False)

    assert guarded.changes() == ["gone: get_info(self)", "gone: get_thread_id(self)", "new: get_info(self, whole)", "new: suspend(self)"]
    assert Shape("x.y", GUARD, lambda: set(vars(import_module("temporalio._y"))), {"Y"}).changes() == [
        "x.y is not there any more: No module named 'temporalio._y'"
    ]
