"""The neighbour `batches`: many cases at once, judges, and their registry."""

from gradeloop.extensions import Command, Extension

_GROUP, _JUDGE = "Suites and batches", "Judge finished runs"

EXTENSION = Extension(
    name="batches",
    commands={
        "judge": Command(_JUDGE, "Judge finished runs; stored verdicts are not paid for twice.", "gradeloop.batches.cli.judge:app"),
        "runs": Command(_JUDGE, "Show finished runs as a judge sees them.", "gradeloop.batches.cli.runs:app"),
        "registry": Command(_JUDGE, "Keep judges' rubrics and their versions.", "gradeloop.batches.cli.judge:app"),
        "export": Command("", "Write a batch's results to files, or as JSON to stdout.", "gradeloop.batches.cli.batches:app"),
        "batches": Command(_GROUP, "List, show, export and pause batches.", "gradeloop.batches.cli.batches:app"),
        "diff": Command("Reports", "Show what regressed and improved from batch A to batch B.", "gradeloop.batches.cli.batches:app"),
    },
    kinds={
        "subjects": "gradeloop.batches.pages.subjects:SUBJECTS",
        "checks": "gradeloop.batches.draft_checks:KINDS",
        "tools": "gradeloop.batches.draft_checks:TOOLS",
    },
    tables="gradeloop.batches.tables:TABLES",
    erases="gradeloop.batches.tables:OWNED",
    schemas="gradeloop.batches.schemas:SCHEMAS",
    waits="gradeloop.batches.unsure:waiting",
    routes="gradeloop.batches.pages.live:live_pages",
    templates="gradeloop.batches.pages:TEMPLATES",
    worker="workflows.batches.plugin:plugin",
    admits="activities.batches.batch_activities:ADMISSION",
)
