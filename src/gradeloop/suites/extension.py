"""The neighbour `suites`: files of cases, promptfoo's too."""

from gradeloop.extensions import Command, Extension

_GROUP = "Suites and batches"

EXTENSION = Extension(
    name="suites",
    commands={
        "eval": Command(_GROUP, "Run a suite as a batch; the exit code is a gate for CI.", "gradeloop.suites.cli.eval:app"),
        "retry": Command("", "Run a suite as a batch; the exit code is a gate for CI.", "gradeloop.suites.cli.eval:app"),
        "validate": Command(_GROUP, "Check files before they run; no call, no server.", "gradeloop.suites.cli.validate:app"),
        "convert": Command(_GROUP, "Convert promptfoo's configuration to a suite of ours.", "gradeloop.suites.cli.conversion:app"),
        "rubric convert": Command(
            "Decide as a person", "Convert promptfoo's or Mastra's file to a rubric.", "gradeloop.suites.cli.conversion:rubric_app"
        ),
    },
    kinds={"renderers": "gradeloop.suites.promptfoo_results:RENDERERS"},
    schemas="gradeloop.suites.suite:SCHEMAS",
)
