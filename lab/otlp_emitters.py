"""What two real emitters send over OTLP, read whole: `python -m lab.otlp_emitters`.

OpenTelemetry's GenAI instrumentation of the openai package (a prerelease, with content in spans, in events, and as log records) and
OpenInference's, each in a process of its own, call a mock provider and export to a receiver; every text and call that they sent is looked
for in the runs. Their packages go into a folder of their own in the user's cache.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gradeloop.contract.transcript import AgentRun
from gradeloop.exit_codes import leave
from lab.peer.venv import peer_python
from rig.otlp import receiver

EMITTERS = (
    "openai==3.57.0",
    "httpx>=0.28",
    "openinference-instrumentation-openai==0.1.66",
    "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "opentelemetry-instrumentation-openai-v2==2.4b0",
    "opentelemetry-sdk==1.45.2",
    "opentelemetry-util-genai==0.4b0",
)

_NEWEST = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
WAYS: dict[str, dict[str, str]] = {
    "OpenTelemetry, content in spans": {"EMITTER": "opentelemetry", **_NEWEST, _CAPTURE: "SPAN_ONLY"},
    "OpenTelemetry, content in events": {"EMITTER": "opentelemetry", **_NEWEST, _CAPTURE: "EVENT_ONLY"},
    "OpenTelemetry, content in log records": {"EMITTER": "opentelemetry", _CAPTURE: "true"},
    "OpenInference": {"EMITTER": "openinference"},
}

ROLES = ["system", "user", "assistant", "tool", "assistant"]


def is_whole(run: AgentRun, at: int) -> bool:
    """Return whether a run has all that its conversation was."""
    messages = [message for transcript in run.transcripts for message in transcript.messages]
    text = run.json_bytes().decode()
    said = ("Be brief.", f"Question {at}: what is the weather in Zürich?", '"weather"', '"city":"Zürich"', "call_1", f"sunny {at}")
    return [message.role for message in messages] == ROLES and all(one in text for one in (*said, f"The answer to: sunny {at}"))


async def emit(python: Path, way: Mapping[str, str], count: int, folder: Path) -> tuple[int, int]:
    """Have a service export so many conversations, and return how many runs there are, and how many of them are whole."""
    async with receiver(f"sqlite:///{folder}/results.db", settle=0.5) as found:
        environment = {**os.environ, **way, "ENDPOINT": found.url}
        command = [str(python), str(Path(__file__).parent / "peer" / "emitter.py"), str(count)]
        process = await asyncio.create_subprocess_exec(*command, env=environment)
        if await process.wait():
            raise SystemExit("the emitter failed")
        await asyncio.sleep(0.6)
        runs = [one.run for one in await found.runs()]
    numbered = [(run, at) for run in runs if run is not None for at in range(count) if f"Question {at}:" in run.json_bytes().decode()]
    return len(runs), len({at for run, at in numbered if is_whole(run, at)})


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    python, count, failed = peer_python(EMITTERS), 40, False
    print("| emitter | conversations | runs | whole |\n|---|---|---|---|")
    for name, way in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            runs, whole = asyncio.run(emit(python, way, count, Path(folder)))
        failed = failed or (runs, whole) != (count, count)
        print(f"| {name} | {count} | {runs} | {whole} |", flush=True)
    leave(1 if failed else 0)


if __name__ == "__main__":
    main()
