"""Variables in rubrics: filled where a request has them, literal where not, and never more than was given."""

import json
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import RunResult, parse_request
from gradeloop.errors import InvalidRequest
from gradeloop.grading.templates import fill
from tests.rig.threads import draft, grade, request, row, serving, until


def filled(text: str, **variables: Any) -> str:
    """Return a criterion's text with the variables in it."""
    rubric = fill(Rubric.model_validate({"criteria": [text]}), variables)
    assert rubric is not None
    return rubric.criteria[0].text


def filled_rubric(raw: dict[str, Any]) -> Rubric | None:
    """Return a request's rubric with its variables in it."""
    read = parse_request(raw)
    return fill(read.rubric, read.vars)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Greets {{ user.name }}", "Greets Ada {{ x }}"),
        ("{{ user }}", '{"name": "Ada {{ x }}", "items": [1, "zwei"]}'),
        ("{{ user.items[1]|upper }}", "ZWEI"),
        ("{% for item in user.items %}{{ item }};{% endfor %}", "1;zwei;"),
        ("{% if none %}a{% else %}b{% endif %} {{ none }} {{ yes }} {{ number }}", "b null true 1.5"),
        ("{{ user.mail|default('no mail') }}", "no mail"),
        ("costs {5} or {{ '{{' }}", "costs {5} or {{"),
    ],
)
def test_variables_stand_where_they_are_named(text: str, expected: str) -> None:
    assert filled(text, user={"name": "Ada {{ x }}", "items": [1, "zwei"]}, none=None, yes=True, number=1.5) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ wo }}", "criteria[0].description: 'wo' is undefined; the variables are: who"),
        ("{{ who.mail.host }}", "criteria[0].description: 'dict object' has no attribute 'mail'; the variables are: who"),
        ("{{ who", "unexpected end of template"),
        ("{{ who.__class__ }}", "has no attribute '__class__'"),
        ("{{ who.items() }}", "'call' is not taken in a rubric"),
        ("{{ self }}", "'self' is jinja2's own and undefined here"),
        ("{% set x = 1 %}", "'assign' is not taken in a rubric"),
        ("{% include 'x' %}", "'include' is not taken in a rubric"),
        ("{% macro m() %}{% endmacro %}", "'macro' is not taken in a rubric"),
        ("{{ 'a' * 1000000000 }}", "'mul' is not taken in a rubric"),
        ("{{ who|pprint }}", "the filter 'pprint' is not taken in a rubric"),
        ("{% for a in who %}{% for b in who %}{% endfor %}{% endfor %}", "a loop runs over a variable, and not inside another loop"),
        ("{% for a in who|tojson %}x{% endfor %}", "a loop runs over a variable"),
        ("{{ " + "(" * 5000 + "who" + ")" * 5000 + " }}", "the template is nested too deeply; flatten it"),
        ("{% if who %}" * 300 + "{% endif %}" * 300, "the template is nested too deeply; flatten it"),
        ("{{ not " + "not " * 5000 + "who }}", "the template is nested too deeply; flatten it"),
        ("{{ who" + "[0]" * 9000 + " }}", "criteria[0].description: "),
        ("{{ range(9) }}", "'call' is not taken in a rubric"),
    ],
)
def test_what_cannot_be_filled_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        filled(text, who={})

    assert why in str(caught.value)


def test_what_is_filled_in_is_capped() -> None:
    with pytest.raises(InvalidRequest, match="filled, it has more than 65536 characters"):
        filled("{% for x in xs %}{{ long }}{% endfor %}", xs=[1] * 20, long="x" * 5000)
    with pytest.raises(InvalidRequest, match="vars: 65548 bytes as JSON, 65536 at most"):
        filled("x", long="x" * 65536)


@pytest.mark.parametrize(
    ("rubric", "why"),
    [
        ({"criteria": ["{{ nothing }}"]}, "criteria[0].description: the description is empty; say what must hold"),
        ({"criteria": ["{{ long }}", "{{ long }}"]}, "65536 at most; move what is background into the conversation"),
        ({"name": "{{ long }}", "criteria": ["a"]}, "name: String should have at most 200 characters"),
        ({"prompt": "{{ output }}{{ long }}{{ long }}", "criteria": ["a"]}, "filled, it has more than 65536 characters"),
    ],
)
async def test_what_is_no_rubric_once_it_is_filled_is_refused_at_every_door(client: Client, rubric: dict[str, Any], why: str) -> None:
    variables = {"nothing": "", "long": "x" * 40_000}
    with pytest.raises(InvalidRequest) as caught:
        filled_rubric(request(rubric, vars=variables))
    async with serving(client, draft(), grade()) as served:
        thread = await served.start(request("- fine", vars=variables, idle_timeout=60))
        await until(thread, "idle")
        await thread.signal("supply_rubric", rubric)
        events = (await thread.query("events", args=[0, 999], result_type=dict[str, Any]))["items"]
        with pytest.raises(WorkflowUpdateFailedError):
            await thread.execute_update("invoke", {"rubric": rubric})
        await thread.signal("close")
        result = await thread.result()

    assert why in str(caught.value)
    assert [why in event["why"] for event in events if event["type"] == "rubric_rejected"] == [True]
    assert result.status == "satisfied"


def test_without_variables_text_is_literal() -> None:
    text = "{{ user.name }} {% for %} {{"

    assert filled_rubric(request({"criteria": [text]})) == Rubric.model_validate({"criteria": [text]})


def test_an_unknown_variable_is_refused_before_anything_is_recorded() -> None:
    with pytest.raises(InvalidRequest) as caught:
        filled_rubric(request("- greets {{ name }}", vars={"nam": "Ada"}))

    assert str(caught.value) == "criteria[0].description: 'name' is undefined; the variables are: nam"


async def test_a_threads_variables_fill_later_rubrics_and_can_be_replaced(client: Client) -> None:
    runs = [{"role": "grader", "run": at, "verdict": grade()["verdict"]} for at in range(3)]
    async with serving(client, draft(), draft(run=1), draft(run=2), *runs) as served:
        thread = await served.start(request("- greets {{ name }}", vars={"name": "Ada"}, idle_timeout=60))
        await until(thread, "idle")
        hello = [{"role": "user", "content": "again"}]
        first = await thread.execute_update("invoke", {"messages": hello, "vars": {"name": "Bo"}}, result_type=RunResult)
        second = await thread.execute_update("invoke", {"messages": hello, "rubric": "- names {{ name }}"}, result_type=RunResult)
        await thread.signal("supply_rubric", "- names {{ nobody }}")
        events = (await thread.query("events", args=[0, 999], result_type=dict[str, Any]))["items"]
        await thread.signal("close")

    assert [item.evaluations[0].criteria[0].name for item in (first, second)] == ["greets Bo", "names Bo"]
    assert [event["why"] for event in events if event["type"] == "rubric_rejected"] == [
        "criteria[0].description: 'nobody' is undefined; the variables are: name"
    ]


@pytest.mark.parametrize("text", ["1.10", "null", '["a"]', "{{ name }}", "{% for %}", '{"a": 1}', "007", "true"])
async def test_what_is_judged_is_never_a_template_and_never_coerced(client: Client, text: str) -> None:
    prompt = "{{ rubric }} {{ output }}"
    rubric = {"prompt": prompt, "criteria": ["greets {{ name }}"]}
    async with serving(client, draft(0, text), grade(0, row("c1"))) as served:
        result = await served.run(request(rubric, {"role": "user", "content": text}, vars={"name": "Ada"}))

    (asked,) = served.models.requests_of("grader")
    assert result.output == text
    assert asked.messages[0].content.count("greets Ada") == 1
    assert f'"text": {json.dumps(text)}}}' in asked.messages[0].content
