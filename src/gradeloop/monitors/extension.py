"""The neighbour `monitors`: a sample of production, judged as it happens."""

from gradeloop.extensions import Command, Extension

EXTENSION = Extension(
    name="monitors",
    commands={
        "monitor": Command("Judge finished runs", "Judge a sample of production as it happens.", "gradeloop.monitors.cli.monitor:app"),
    },
    tables="gradeloop.monitors.tables:TABLES",
    erases="gradeloop.monitors.tables:OWNED",
    waits="gradeloop.monitors.labelling:waiting",
    routes="gradeloop.monitors.pages.live:live_pages",
    templates="gradeloop.monitors.pages:TEMPLATES",
    receives="gradeloop.monitors.receiver:open_receiver",
    worker="workflows.monitors.plugin:plugin",
)
