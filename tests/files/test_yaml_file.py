"""YAML is read into JSON values, and everything else is refused in one sentence that says where and what to do."""

import json
from pathlib import Path

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import read_yaml


def refusal(source: Path | str) -> str:
    """Return the message with which `source` is refused."""
    with pytest.raises(InvalidRequest) as caught:
        read_yaml(source, "the task file")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_becomes_plain_json_values(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("a: [1, 2.5, true, null, yes]\nb:\n  text: |\n    two\n    lines\n", encoding="utf-8-sig")

    value = read_yaml(file, "the task file")

    assert value == {"a": [1, 2.5, True, None, "yes"], "b": {"text": "two\nlines\n"}}
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["2024-01-01", "2024-01-01T10:00:00Z", "2024-13-45", "12:30:00"])
def test_a_date_stays_the_text_that_was_written(text: str) -> None:
    assert read_yaml(f"at: {text}", "the task file") == {"at": text}


def test_an_escaped_surrogate_pair_is_one_character() -> None:
    assert read_yaml(r'{"a": "\ud83d\ude00"}', "the task file") == {"a": "😀"}


def test_what_json_cannot_hold_is_refused_with_its_place(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str]] = [
        ("a: &x 1\nb: *x", "line 1, column 4", "the anchor &x is refused"),
        ("a: *x", "line 1, column 4", "undefined alias"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1", "the key 'a' is there twice; keep one"),
        ("a: !!python/name:os.system x", "line 1, column 4", "python/name:os.system' is refused"),
        ("a: !!binary aGk=", "line 1, column 4", "binary' is refused"),
        ("a: !!set {x, y}", "line 1, column 4", "set' is refused"),
        ("<<: {a: 1}", "line 1, column 1", "the merge key << is refused"),
        ("1: x", "line 1, column 1", "the key '1' is not a string; quote it"),
        ("? [a]\n: b", "line 1, column 3", "is not a string; quote it"),
        ("a: .nan", "line 1, column 4", "'.nan' is not a number in JSON"),
        ("a: 1e999", "line 1, column 4", "'1e999' is not a number in JSON"),
        ("a: !!int ''", "line 1, column 4", "'' is not of type int"),
        ("a: " + "9" * 5000, "line 1, column 4", "is not of type int"),
        (r'a: "\ud800"', "line 1, column 4", "half of a surrogate pair"),
        ("a: b: c", "line 1, column 5", "mapping values are not allowed here"),
        ("\ta: 1", "line 1, column 1", "cannot start any token"),
        ("---\na\n---\nb", "line 3, column 1", "another document"),
        ("[" * 3000, "line 1", "nested deeper than 64 levels; flatten it"),
    ]
    for text, place, why in rows:
        with subtests.test(text=text):
            message = refusal(text)

            assert message.startswith(f"the task file, {place}")
            assert why in message


@pytest.mark.parametrize("text", ["", "# only a comment\n", "null\n"])
def test_an_empty_text_is_refused(text: str) -> None:
    assert refusal(text) == "the task file is empty; write the YAML first"


def test_a_missing_file_a_directory_and_a_path_that_is_none_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.yaml") == f"the task file '{tmp_path / 'no.yaml'}' does not exist; check the path"
    assert refusal(tmp_path) == f"the task file '{tmp_path}' is a directory; name a YAML file in it"
    assert "cannot be read" in refusal(Path("a\0b"))


def test_a_binary_file_is_refused_as_such(tmp_path: Path) -> None:
    image, zeros = tmp_path / "image.png", tmp_path / "zeros.bin"
    image.write_bytes(b"a\n\x89PNG\r\n\x1a\n\x00")
    zeros.write_bytes(b"a\n\x00\x00")

    assert refusal(image) == f"the task file '{image}', line 2: byte 0x89 is not UTF-8; save the file as UTF-8"
    assert "check that this is a text file" in refusal(zeros)


def test_one_byte_above_the_cap_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cap = 1024 * 1024
    monkeypatch.setattr("gradeloop.files.yaml.YAML_BYTES", cap)
    file = tmp_path / "big.yaml"
    file.write_bytes(b"a: '" + b"x" * (cap - 5) + b"'")
    fits = read_yaml(file, "the task file")
    file.write_bytes(b"a: '" + "é".encode() * (cap // 2) + b"' [")

    assert fits == {"a": "x" * (cap - 5)}
    assert refusal(file) == f"the task file '{file}' is larger than 1 MiB; move long texts out of it"


QUOTE = "is not in quotes, so YAML reads its braces; quote the whole text, as in 'Dear {{ name }}'"


def test_a_template_that_is_not_quoted_is_refused_with_the_cure(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("prompts: [hi {{ name }}]", "{{ name }}"),
        ("prompts: [hi {{ name }}, 'b']", "{{ name }}"),
        ("prompt: {{ name }}", "{{ name }}"),
        ("prompt: {{ name | upper }}", "{{ name | upper }}"),
        ("prompt: {{ name }} is here", "{{ name }}"),
        ("prompt: {{name}}, hi\nb: 1", "{{name}}"),
        ("prompt: hi {{ name }}: there", "{{ name }}"),
        ("prompt: {% if x %}a{% endif %}", "{% if x %}"),
        ("prompts:\n  - {{ a }}\n  - b", "{{ a }}"),
        ("prompts:\n  - {{ a }} and\n  - b", "{{ a }}"),
        ("prompt:\n  {{ x }}\n  more", "{{ x }}"),
        ("tests: [{vars: {q: {{ q }}}}]", "{{ q }}"),
        ("rubric:\n  criteria:\n    - {description: Names {{ who }}}", "{{ who }}"),
    ]
    for text, template in rows:
        with subtests.test(text=text):
            message = refusal(text)

            assert f"'{template}' {QUOTE}" in message
            assert (
                f", line {next(at for at, line in enumerate(text.splitlines(), 1) if template in line)}, column" in message
                or "more" in text
            )


@pytest.mark.parametrize(
    "text", ["a: '{{ x }}': b", 'a: "{{ x }}" [', "a: {b: [c}  # {{ x }}", "a: {'{{ x }}': b: c}", "a: hi {{ x }}\nb: [", "a: {b: {c: d}}}"]
)
def test_a_template_that_is_quoted_or_plain_text_is_not_blamed(text: str) -> None:
    assert QUOTE not in refusal(text)


def test_plain_text_may_hold_a_template() -> None:
    assert read_yaml("a: hi {{ x }}\nb:\n  - so {{ y }}", "the task file") == {"a": "hi {{ x }}", "b": ["so {{ y }}"]}
