"""TASK.yaml and the flags beside it: what they come to, and the one sentence that refuses each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.cli.init import init
from gradeloop.cli.task_file import Task, TaskFlags, read_task
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.errors import InvalidRequest
from gradeloop.settings.endpoints import DEFAULTS, DefaultRule, refuse_unservable
from gradeloop.temporal.connect import application_folder

SCRIPTED: dict[str, Any] = {"generator": {"model": "scripted:x"}, "grader": {"model": "scripted:x"}, "scripted": "replies.yaml"}
BY_FLAGS = TaskFlags(prompt="Write it.", rubric="- it is good", model="anthropic:m", grader="anthropic:m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file of replies and one of tools."""
    (tmp_path / "replies.yaml").write_text("replies: []")
    (tmp_path / "tools.py").write_text("def look(text: str) -> bool: return True")
    return tmp_path


def read(folder: Path, text: str | bytes | dict[str, Any], flags: TaskFlags | None = None) -> Task:
    """Write a task file and read it."""
    path = folder / "task.yaml"
    raw = json.dumps(SCRIPTED | {"prompt": "Write it."} | text) if isinstance(text, dict) else text
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return read_task(path, flags or TaskFlags())


def refusal(folder: Path, text: str | bytes | dict[str, Any], flags: TaskFlags | None = None) -> str:
    """Return the sentence that refuses a task."""
    with pytest.raises(InvalidRequest) as caught:
        read(folder, text, flags)
    return str(caught.value)


def test_a_task_is_the_workflows_argument_plus_what_its_worker_needs(folder: Path) -> None:
    task = read(folder, {"rubric": "- a\n- b", "max_iterations": 5, "tools": "tools.py", "thread": "t-1"})

    assert [message.content for message in task.request.messages] == ["Write it."]
    assert task.request.rubric
    assert [criterion.id for criterion in task.request.rubric.criteria] == ["c1", "c2"]
    assert task.request.max_iterations == 5
    assert task.worker.tools == (folder / "tools.py",)
    assert task.worker.scripted == folder / "replies.yaml"
    assert task.thread == "t-1"


def test_flags_go_before_the_file_and_tools_join_its_own(folder: Path) -> None:
    (folder / "more.py").write_text("")
    flags = TaskFlags(
        prompt="Other.",
        rubric="- other",
        model="scripted:g",
        grader="scripted:j",
        max_iterations=2,
        tools=(folder / "more.py",),
        thread="t-2",
    )

    task = read(folder, {"rubric": "- a", "tools": ["tools.py"], "thread": "t-1"}, flags)

    assert [message.content for message in task.request.messages] == ["Other."]
    assert task.request.rubric
    assert task.request.rubric.criteria[0].description == "other"
    assert task.request.generator.model == ModelSpec(id="scripted:g")
    assert task.request.grader
    assert task.request.grader.model == ModelSpec(id="scripted:j")
    assert task.request.max_iterations == 2
    assert [path.name for path in task.worker.tools] == ["tools.py", "more.py"]
    assert task.thread == "t-2"


def test_a_prompt_comes_after_the_messages(folder: Path) -> None:
    earlier = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    assert [message.content for message in read(folder, {"messages": earlier}).request.messages] == ["a", "b", "Write it."]


@pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: row.variables[0])
def test_a_key_in_the_environment_names_both_models_and_the_user_is_told(row: DefaultRule, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {name: "https://a.example" if name.endswith("ENDPOINT") else "true" for name in row.variables}
    for name, value in values.items():
        monkeypatch.setenv(name, value)

    task = read_task(None, TaskFlags(prompt="Write it.", rubric="- it is good"))

    model = row.model.format(**values)
    assert task.request.grader
    assert task.request.generator.model
    assert task.request.generator.model == task.request.grader.model
    assert task.request.generator.model.id == model
    assert task.notes == tuple(f"{role}: {model}, because {row.variables[0]} is set" for role in ("generator", "grader"))


def test_a_rubric_may_be_a_file_of_text_or_of_yaml_or_the_text_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    (folder / "rubric.md").write_text("- a\n- b")
    (folder / "rubric.yaml").write_text("criteria: [a, b]")
    forms = [str(folder / "rubric.md"), str(folder / "rubric.yaml"), "- a\n- b"]

    rubrics = [read_task(None, TaskFlags(prompt="p", rubric=value)).request.rubric for value in forms]

    assert [[criterion.description for criterion in rubric.criteria] for rubric in rubrics if rubric] == [["a", "b"]] * 3


def test_a_rubric_of_checks_alone_needs_no_grader_and_no_key(folder: Path) -> None:
    rubric = {"criteria": [{"description": "d", "check": "look"}]}

    assert read(folder, {"rubric": rubric, "grader": None}).request.grader is None


def test_no_rubric_needs_no_grader(folder: Path) -> None:
    assert read(folder, {"grader": None}).request.grader is None


MISTAKES: dict[str, tuple[str | bytes | dict[str, Any], tuple[str, ...]]] = {
    "a binary file": (b"\x7fELF\xd0\x00", ("task.yaml", "line 1", "0xd0", "UTF-8")),
    "control characters": (b"prompt: \x00", ("task.yaml", "#x0000", "text file")),
    "an empty file": ("", ("task.yaml", "is empty")),
    "white space alone": (" \n\n", ("task.yaml", "is empty")),
    "a list": ("- a", ("is not a mapping", "'prompt:'")),
    "a key twice": ("prompt: a\nprompt: b", ("line 2", "'prompt' is there twice", "keep one")),
    "an alias": ("prompt: &p a\nrubric: *p", ("line 1", "&p is refused", "write the value out")),
    "an unknown key": ("promt: a", ("'promt'", "Did you mean 'prompt'?")),
    "an unknown key's place": ("prompt: a\nvariables:\n  - b", ("task.yaml", "line 2, column 1: unknown key 'variables'")),
    "an unknown key within": ({"generator": {"model": "scripted:x", "tool": []}}, ("generator", "'tool'", "Did you mean 'tools'?")),
    "no task": ("rubric: a", ("the task is missing", "'prompt:'", "--prompt")),
    "an empty prompt": ({"prompt": ""}, ("messages[0]", "is empty", "write it")),
    "a white-space prompt": ({"prompt": " \n "}, ("messages[0]", "is empty", "write it")),
    "an unknown provider": ({"generator": {"model": "antropic:x"}}, ("generator.model", "'antropic'", "Did you mean 'anthropic'?")),
    "a model without provider": ({"generator": {"model": "gpt"}}, ("generator.model", "'gpt'", "'provider:model'")),
    "an empty rubric": ({"rubric": ""}, ("rubric", "empty", "a criterion a line")),
    "a rubric without criteria": ({"rubric": {"criteria": []}}, ("rubric", "empty", "a criterion a line")),
    "a white-space rubric": ({"rubric": " \n\t"}, ("rubric", "only white space", "write one a line")),
    "101 criteria": ({"rubric": "\n".join(f"- {at}" for at in range(101))}, ("rubric.criteria", "101 criteria", "100 at most", "split")),
    "a rubric of 10 MB": ({"rubric": "- " + "x" * 3_000_000}, ("rubric", "3000002 bytes", "65536 at most")),
    "a file of 10 MB": ("prompt: a\nrubric: |\n  - " + "x" * 10_000_000, ("task.yaml", "larger than 4 MiB", "move long texts out")),
    "no iteration": ({"max_iterations": 0}, ("max_iterations", "greater than or equal to 1", "'0'")),
    "21 iterations": ({"max_iterations": 21}, ("max_iterations", "less than or equal to 20", "'21'")),
    "tools that are not there": ({"tools": "no.py"}, ("tools", "no.py", "does not exist")),
    "tools that are a folder": ({"tools": "."}, ("tools", "is not a file")),
    "replies that are not there": ({"scripted": "no.yaml"}, ("scripted", "no.yaml", "does not exist")),
    "scripted models without replies": ({"scripted": None}, ("generator.model", "'scripted:x'", "scripted:")),
    "a key that is not set": ({"generator": {"model": "openai:gpt-5-mini"}}, ("generator.model", "'openai:gpt-5-mini'", "OPENAI_API_KEY")),
    "a thread id with a space": ({"thread": "a b"}, ("thread", "'a b'")),
}


def test_a_mistake_in_the_file_is_refused_with_field_value_and_cure(folder: Path, subtests: pytest.Subtests) -> None:
    for mistake, (text, words) in MISTAKES.items():
        with subtests.test(mistake):
            sentence = refusal(folder, text)

            assert not [word for word in words if word not in sentence], sentence
            assert "\n" not in sentence
            assert len(sentence) < 500


MISTAKEN_FLAGS = [
    (TaskFlags(prompt="p", thread="a b"), ("--thread", "'a b'", "white space")),
    (TaskFlags(prompt="p", thread=""), ("--thread", "''", "1 to 200")),
    (TaskFlags(prompt="p", rubric="missing.md"), ("--rubric", "'missing.md'", "does not exist")),
    (TaskFlags(prompt="p", rubric=""), ("rubric", "empty")),
    (TaskFlags(prompt="p", model="anthropic:m"), ("ANTHROPIC_API_KEY", "'anthropic:m'")),
    (TaskFlags(prompt="p"), ("generator.model", "--model", "OPENAI_API_KEY")),
    (TaskFlags(prompt="p", rubric="r", model="scripted:x"), ("grader.model", "--grader")),
    (TaskFlags(), ("the task is missing", "--prompt")),
]


def test_a_mistake_in_the_flags_is_refused_with_field_value_and_cure(subtests: pytest.Subtests) -> None:
    for flags, words in MISTAKEN_FLAGS:
        with subtests.test(words[0]):
            with pytest.raises(InvalidRequest) as caught:
                read_task(None, flags)

            assert not [word for word in words if word not in str(caught.value)], str(caught.value)


@pytest.mark.parametrize(("name", "words"), [("no.yaml", "does not exist"), (".", "is a directory")])
def test_a_task_that_is_no_file_is_refused(folder: Path, name: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_task(folder / name, TaskFlags())


def test_a_rubric_file_that_is_binary_is_refused(folder: Path) -> None:
    (folder / "rubric.md").write_bytes(b"\xff\xfe\x00")

    assert "UTF-8" in refusal(folder, {}, TaskFlags(rubric=str(folder / "rubric.md")))


def test_keys_are_not_asked_for_where_a_named_queue_has_a_worker_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="ANTHROPIC_API_KEY is not set"):
        read_task(None, BY_FLAGS)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", "theirs")

    assert read_task(None, BY_FLAGS).request.generator.model == ModelSpec(id="anthropic:m")


def test_a_blank_key_counts_as_none(folder: Path) -> None:
    request = read(folder, {}).request
    spec = request.generator.model_copy(update={"model": ModelSpec(id="openrouter:m")})

    with pytest.raises(InvalidRequest, match="OPENROUTER_API_KEY is not set"):
        refuse_unservable(request.model_copy(update={"generator": spec}), {"OPENROUTER_API_KEY": " "}, scripted=True)


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("max_iterations: 99", "line 4, column 17", "max_iterations: Input should be less than or equal to 20, got '99'"),
        ("budget: {max_tokens: -4}", "line 4, column 22", "budget.max_tokens: Input should be greater than or equal to 1, got '-4'"),
        ("rubric: [a, b]", "line 4, column 9", "rubric: the rubric is a list; write 'criteria:' above it"),
        ("rubric: ''", "line 4, column 9", "rubric: it is empty; write a criterion a line, "),
        (
            "rubric: '- {{ nmae }}'\nvars: {name: a}",
            "line 4, column 9",
            "criteria[0].description: 'nmae' is undefined; the variables are: name",
        ),
        ("grader: {model: 'opnai:m'}", "line 4, column 17", "grader.model: 'opnai:m': unknown provider 'opnai'. Did you mean 'openai'?"),
    ],
)
def test_a_mistake_in_a_value_is_told_with_its_place(tmp_path: Path, line: str, place: str, message: str) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"# a task\nprompt: Write.\ngenerator: {{model: 'ollama:qwen3'}}\n{line}\n")

    with pytest.raises(InvalidRequest) as caught:
        read_task(file, TaskFlags(check=True))

    assert str(caught.value).startswith(f"the task '{file}', {place}: {message}")


def test_a_mistake_in_a_flag_has_no_place_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("prompt: Write.\nmax_iterations: 3\n")

    with pytest.raises(InvalidRequest, match=r"^max_iterations: Input should be less than or equal to 20"):
        read_task(tmp_path / "task.yaml", TaskFlags(max_iterations=99, check=True))


def test_the_example_that_init_writes_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    init(tmp_path / "task.yaml", kind="task")

    task = read_task(tmp_path / "task.yaml", TaskFlags())

    assert task.request.rubric
    assert len(task.request.rubric.criteria) == 3


def test_init_writes_over_nothing(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("mine")

    with pytest.raises(InvalidRequest, match=r"task\.yaml' exists already; name another file"):
        init(tmp_path / "task.yaml", kind="task")
    with pytest.raises(InvalidRequest, match="cannot be written: No such file or directory"):
        init(tmp_path / "no" / "task.yaml", kind="task")

    assert (tmp_path / "task.yaml").read_text() == "mine"


@pytest.mark.parametrize("name", ["haiku", "find_duplicates"])
def test_every_example_task_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")

    assert read_task(application_folder() / "examples" / name / "task.yaml", TaskFlags()).request.rubric
