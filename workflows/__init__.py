"""Deterministic: threads and their grading loop, judgements, batches; and the runner that replays their histories."""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

IMPORTED_LATE = ("jinja2", "jsonschema", "markupsafe", "referencing", "rpds", "re2", "attr", "attrs", "rapidfuzz")
"""What `gradeloop` imports where it is first used, which may be inside a workflow; the sandbox would load it anew for every workflow."""

RUNNER = SandboxedWorkflowRunner(SandboxRestrictions.default.with_passthrough_modules("gradeloop", "activities", *IMPORTED_LATE))
"""The runner with which a history is replayed: Temporal's sandbox, which loads `workflows` anew and takes the rest as it is."""
