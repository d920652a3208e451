"""Deterministic: threads and their grading loop, judgements, batches; and the runner that replays their histories."""

from importlib import import_module

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

LATE_MODULES = (
    "jinja2",
    "jsonschema.validators",
    "rapidfuzz.distance",
    "rapidfuzz.fuzz",
    "referencing.exceptions",
    "ruamel.yaml",
)
"""Modules that `gradeloop` imports at their first use, perhaps inside a workflow: some 150 ms that most commands do without."""

IMPORTED_LATE = ("jinja2", "jsonschema", "markupsafe", "referencing", "rpds", "re2", "attr", "attrs", "rapidfuzz")
"""Packages of such modules, and what these import: the sandbox takes them as they are, and does not load them anew for every workflow."""

RUNNER = SandboxedWorkflowRunner(SandboxRestrictions.default.with_passthrough_modules("gradeloop", "activities", *IMPORTED_LATE))
"""The runner with which a history is replayed: Temporal's sandbox, which loads `workflows` anew and takes the rest as it is."""


def load_late_modules() -> None:
    """Import what workflows would import where they first use it, before a worker runs any.

    The SDK interrupts a workflow's thread that does not yield for two seconds, as an import may not on a loaded machine. A module whose
    import was interrupted can keep its lock, and every later workflow that needs it would wait for ever.
    """
    for name in LATE_MODULES:
        import_module(name)
