"""The contract as TypeScript and as a reference: generated, up to date, and the declarations taken by the compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.site.declare_contract import SENTENCES, contract_declarations, definitions, plain_name
from deploy.site.describe_contract import contract_reference
from gradeloop.cli.schemas import models
from tests.conftest import ROOT

DECLARATIONS = ROOT / "docs" / "contract.d.ts"

USE = """
import type { Notice, RunResult, ThreadRequest } from "./contract";

const generator = { model: "scripted:writer" };
export const request: ThreadRequest = { messages: [{ role: "user", content: "Write a haiku." }], rubric: "- three lines", generator };
export const passed = (result: RunResult): boolean => result.status === "satisfied";
export const asked = (notice: Notice): string[] => (notice.questions ?? []).map((question) => question.id);
"""


def test_the_declarations_are_those_of_the_schemas() -> None:
    assert DECLARATIONS.read_text() == contract_declarations(), "run: make docs"


@pytest.mark.slow
def test_the_reference_is_that_of_the_models() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()

    assert text == contract_reference(), "run: make docs"
    for model in (*models(lambda owner: owner.sent).values(), *models(lambda owner: owner.received).values()):
        section = text.split(f"\n## {model.__name__}\n")[1].split("\n## ")[0]
        assert [name for name in model.model_fields if f"\n| `{name}` | " not in section] == [], model.__name__


@pytest.mark.slow
def test_every_field_of_the_contract_has_a_sentence() -> None:
    fields = [
        (plain_name(name), field, about.get("description", ""))
        for name, schema in definitions().items()
        for part in (schema, *schema.get("anyOf", ()))
        for field, about in part.get("properties", {}).items()
    ]
    written = [(name, field, text) for name, rows in SENTENCES.items() if name not in ("every", "Settings") for field, text in rows.items()]

    assert [f"{name}.{field}" for name, field, text in fields if not text.strip()] == [], "write a docstring below the field"
    assert [row for row in written if row not in fields] == [], "the field has a docstring, or is not there any more"
    assert {field for _, field, text in fields if text == SENTENCES["every"].get(field)} == {*SENTENCES["every"]}
    assert "|  |\n" not in contract_reference()


def test_every_model_of_the_contract_is_declared() -> None:
    text = contract_declarations()

    for name in [model.__name__ for model in (*models(lambda owner: owner.sent).values(), *models(lambda owner: owner.received).values())]:
        assert f"export interface {name} " in text or f"export interface {name}Input " in text, name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tsc") is None, reason="there is no TypeScript compiler")
def test_the_compiler_takes_the_declarations_and_refuses_a_wrong_use(tmp_path: Path) -> None:
    shutil.copy(DECLARATIONS, tmp_path)
    (tmp_path / "use.ts").write_text(USE)
    (tmp_path / "wrong.ts").write_text(USE.replace("satisfied", "satisfied?"))

    def compiled(name: str) -> subprocess.CompletedProcess[str]:
        command = ["tsc", "--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", str(tmp_path / name)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert compiled("use.ts").stdout == ""
    assert "have no overlap" in compiled("wrong.ts").stdout
