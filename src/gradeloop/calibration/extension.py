"""The neighbour `calibration`: how far a judge can be trusted, by what people say of the same runs."""

from gradeloop.extensions import Command, Extension

_GROUP = "Judge finished runs"

EXTENSION = Extension(
    name="calibration",
    commands={
        "agreement": Command(_GROUP, "Measure how well a judge agrees with people.", "gradeloop.calibration.cli.measure:app"),
        "check-judge": Command(
            _GROUP, "Measure how far a judge can be trusted on a labelled set.", "gradeloop.calibration.cli.measure:app"
        ),
        "backtest": Command(_GROUP, "Show what another rubric would have done to threads.", "gradeloop.calibration.cli.backtest:app"),
    },
    templates="gradeloop.calibration:TEMPLATES",
)
