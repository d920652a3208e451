"""A kind of check that another package adds works wherever one of gradeloop's own does."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from activities.tools.registry import ToolRegistry
from gradeloop import extensions
from gradeloop.batches.case_checks import find
from gradeloop.batches.draft_checks import CALL_CHECK
from gradeloop.contract.evaluation import CheckOutcome
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import Extension
from gradeloop.grading.checks import CHECKS, TEXT_CHECK, CheckedDraft, CheckKind, run_text_check, valid_kind
from gradeloop.grading.text_checks import text_kind
from gradeloop.suites.suite import SuiteFile
from tests.rig.suites import cases, refusal

SUITE = """
    prompts: ["Say it"]
    generators: ["scripted:a"]
    scripted: replies.yaml
    tests: [{assert: [TYPE]}]
"""

KINDS = (
    text_kind("shouts", lambda draft, _: None if draft.isupper() else "it whispers", "it shouts", "it does not shout"),
    CheckKind(
        "tokens",
        lambda draft, arguments: CheckOutcome(passed=draft.spent is not None and (draft.spent.tokens or 0) <= int(str(arguments["value"]))),
        lambda arguments: f"the draft takes at most {arguments['value']} tokens",
        lambda _: None,
        CALL_CHECK,
    ),
)


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with two kinds of checks."""
    module = ModuleType("acme_checks")
    module.__dict__["KINDS"] = KINDS
    monkeypatch.setitem(sys.modules, module.__name__, module)
    installed = (*extensions.extensions(), Extension("acme", kinds={"checks": "acme_checks:KINDS"}))
    monkeypatch.setattr(extensions, "extensions", lambda: installed)
    CHECKS.__dict__.pop("rows", None)
    yield
    CHECKS.__dict__.pop("rows", None)


def test_a_rubrics_check_names_it() -> None:
    assert run_text_check("HELLO", {"kind": "shouts"}).passed
    assert run_text_check("hello", {"kind": "shouts"}).gap == "it whispers"
    assert run_text_check("HELLO", {"kind": "shouts", "negate": True}).gap == "it does not shout; found 'HELLO'"
    with pytest.raises(ValueError, match=r"there is no kind 'shuts'. Did you mean 'shouts'\? Known: equals, .*, shouts\."):
        valid_kind(TEXT_CHECK, {"kind": "shuts"})


def test_a_worker_serves_it_and_refuses_what_is_none() -> None:
    tools = ToolRegistry()
    tools.refuse_non_check("text_check", {"kind": "shouts"}, "rubric")
    with pytest.raises(InvalidRequest, match=r"kind: Input should be 'equals', .* 'shouts', got 'shuts'"):
        tools.refuse_non_check("text_check", {"kind": "shuts"}, "rubric")


def test_a_suites_assertion_is_of_its_type(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, SUITE.replace("TYPE", "{type: not-shouts}"))
    (criterion,) = case.rubric.criteria

    assert criterion.text == "it does not shout"
    assert criterion.check is not None
    assert criterion.check.arguments == {"kind": "shouts", "negate": True}
    assert "Did you mean 'shouts'" in refusal(tmp_path, SUITE.replace("TYPE", "{type: shuts}"))
    assert '"not-shouts"' in str(SuiteFile.model_json_schema()).replace("'", '"')


async def test_a_batch_checks_the_call_of_a_draft(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, SUITE.replace("TYPE", "{type: tokens, threshold: 5}"))
    (criterion,) = case.rubric.criteria
    code = ToolRegistry().code
    found = [await find(case, CheckedDraft("x", Usage(calls=1, input=tokens, output=0)), code) for tokens in (5, 6)]

    assert criterion.text == "the draft takes at most 5 tokens"
    assert [checked.checks[criterion.id].passed for checked in found] == [True, False]
