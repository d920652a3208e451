"""The newest release of promptfoo has the types, keys, defaults and variables that are known here: what it adds or drops fails by name."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradeloop.suites.assertions import assertion_types
from gradeloop.suites.unsupported import Keys, keys_of
from rig.node_peers import PROMPTFOO, peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FACTS = Path(__file__).parent.parent / "peer" / "promptfoo_facts.mjs"
Facts = Mapping[str, Any]

FILE_KEYS = "tags sharing metadata writeLatestResults tracing commandLineOptions"
RUN_KEYS = """
    generateSuggestions interactiveProviders isRedteam maxEvalTimeMs progressCallback showProgressBar silent suggestionsCount timeoutMs
"""

KEYS: Mapping[str, tuple[Keys, str, str]] = {
    "configuration": (
        keys_of("configuration"),
        "tags sharing metadata writeLatestResults tracing commandLineOptions",
        "assertionTemplates",
    ),
    "evaluateOptions": (keys_of("evaluateOptions"), RUN_KEYS, ""),
    "assertion": (Keys(frozenset(key for row in assertion_types() for key in row.keys.read)), "", ""),
    "assert-set": (keys_of("assert-set"), "config", ""),
    "provider": (keys_of("provider"), "delay", ""),
    **{name: (keys_of(name), "", "") for name in ("test", "options", "scenario")},
}
"""For each of its objects our table, the keys that change no verdict and are ignored with a note, and those that it has none of."""

CELLS = {"classifier": "refused", "cost": "a limit is given", "latency": "a limit is given", "starts-with": "it has no threshold"}
"""Types to which a cell of CSV gives a threshold there and not here, and why."""

HEEDED = """
    CSV_DELIMITER CSV_STRICT DISABLE_CONVERSATION_VAR DISABLE_JSON_AUTOESCAPE DISABLE_OBJECT_STRINGIFY DISABLE_PDF_AS_TEXT
    DISABLE_REF_PARSER DISABLE_TEMPLATE_ENV_VARS DISABLE_TEMPLATING DISABLE_VAR_EXPANSION FAILED_TEST_EXIT_CODE PASS_RATE_THRESHOLD
    PROMPT_SEPARATOR REQUIRE_JSON_PROMPTS SHORT_CIRCUIT_TEST_FAILURES STRICT_FILES DISABLE_AJV_STRICT_MODE
"""
"""Variables, `PROMPTFOO_` left out, by which its own verdicts change; here the file alone says what is judged."""

IGNORED = """
    ASSERTIONS_MAX_CONCURRENCY AUTHOR CACHE_ENABLED CACHE_PATH CACHE_TTL CACHE_TYPE CA_CERT_PATH CLOUD_API_URL CONFIG_DIR
    CSRF_ALLOWED_ORIGINS DELAY_MS DISABLE_ADAPTIVE_SCHEDULER DISABLE_DEBUG_LOG DISABLE_ERROR_LOG DISABLE_MULTIMEDIA_AS_BASE64
    DISABLE_REDTEAM_MODERATION DISABLE_REDTEAM_REMOTE_GENERATION DISABLE_REMOTE_GENERATION DISABLE_SHARE_EMAIL_REQUEST DISABLE_SHARING
    DISABLE_TELEMETRY DISABLE_UPDATE DISABLE_WAL_MODE ENABLE_DATABASE_LOGS ENABLE_UNBLOCKING EVAL_TIMEOUT_MS FETCH_CONNECTIONS
    GRADING_IMAGE_MAX_BYTES GRADING_IMAGE_MAX_RAW_CHARS GRADING_IMAGE_MAX_TOTAL_BYTES GRADING_IMAGE_MAX_TOTAL_RAW_CHARS GRADING_MAX_IMAGES
    INLINE_MEDIA INSECURE_SSL JAILBREAK_TEMPERATURE JKS_PASSWORD LOG_DIR LOG_TO_STDERR MAX_EVAL_TIME_MS MAX_HARMFUL_TESTS_PER_REQUEST
    MEDIA_PATH MIN_CONCURRENCY NO_TESTCASE_ASSERT_WARNING NUM_JAILBREAK_ITERATIONS OFFICIAL_DOCKER_IMAGE OTEL_DEBUG OTEL_ENABLED
    OTEL_ENDPOINT OTEL_LOCAL_EXPORT OTEL_SERVICE_NAME PFX_PASSWORD PYTHON PYTHON_DEBUG_ENABLED REMOTE_API_BASE_URL REMOTE_APP_BASE_URL
    REMOTE_GENERATION_URL REQUEST_BACKOFF_MS RETRY_5XX RUBY RUNNING_IN_DOCKER SCHEDULER_QUEUE_TIMEOUT_MS SELF_HOSTED SHARE_CHUNK_SIZE
    SHARE_INLINE_BLOBS SHARING_APP_BASE_URL STRIP_GRADING_RESULT STRIP_METADATA STRIP_PROMPT_TEXT STRIP_RESPONSE_OUTPUT STRIP_TEST_VARS
    TELEMETRY_DEBUG TRACE_FETCH_MAX_ATTEMPTS TRACE_FETCH_RETRY_DELAY_MS TRACE_FETCH_STABLE_POLLS TRACING_ENABLED
    UNALIGNED_INFERENCE_ENDPOINT
"""
"""Variables that say how it calls, stores and shows."""


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Return what the newest release says of itself, or skip where it cannot be had."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed, and promptfoo comes from it; install Node with npm (Debian: apt install npm)")
    asked = subprocess.run([npm, "view", "promptfoo", "version"], capture_output=True, text=True, check=False, timeout=100)
    if asked.returncode:
        pytest.skip(f"npm's registry cannot be reached; connect this machine to it: {asked.stderr.strip()[-300:]}")
    try:
        found = peer((f"promptfoo@{asked.stdout.strip()}", *PROMPTFOO[1:]))
    except SystemExit as error:
        pytest.skip(str(error))
    told = subprocess.run([found.node, FACTS, found.modules / "promptfoo"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    facts: Facts = json.loads(told.stdout)
    return facts


def test_it_has_the_types_that_the_table_has(facts: Facts) -> None:
    in_cells_alone = {"fn", "eval", "grade"}
    ours = {name: row.negatable for row in assertion_types() for name in (row.name, *row.spellings) if name not in in_cells_alone}
    theirs = dict.fromkeys(facts["types"], True) | dict.fromkeys(facts["special"], False)

    assert sorted(theirs.keys() - ours.keys()) == []
    assert sorted(ours.keys() - theirs.keys()) == []
    assert [name for name in theirs if theirs[name] != ours[name]] == []


def test_a_type_that_is_not_supported_says_what_is_written_instead() -> None:
    assert [row.name for row in assertion_types() if not row.build and not row.refused] == []


def test_its_thresholds_are_those_of_the_table(facts: Facts) -> None:
    taken = {name: row for row in assertion_types() if row.build for name in (row.name, *row.spellings)}
    theirs = {name: threshold for name, threshold in facts["thresholds"].items() if name in taken}
    assert theirs == {name: taken[name].threshold for name in theirs}

    cells = {row.name: row.cell_threshold for row in taken.values() if row.cell_threshold is not None}
    assert {name: threshold for name, threshold in facts["cells"].items() if name not in CELLS} == cells
    assert sorted(CELLS.keys() - facts["cells"].keys()) == []


@pytest.mark.parametrize("name", KEYS)
def test_each_key_of_its_objects_is_read_refused_or_known_to_change_nothing(facts: Facts, name: str) -> None:
    keys, ignored, ours = KEYS[name]
    known, theirs = keys.read | keys.refused.keys(), set(facts["keys"][name])

    assert sorted(theirs - known - set(ignored.split())) == []
    assert sorted(known - theirs) == sorted(ours.split())
    assert sorted(set(ignored.split()) - theirs | set(ignored.split()) & known) == []


def test_its_variables_are_known(facts: Facts) -> None:
    known = {f"PROMPTFOO_{name}" for name in (*HEEDED.split(), *IGNORED.split())}

    assert sorted(set(facts["environment"]) - known) == []
    assert sorted(known - set(facts["environment"])) == []
