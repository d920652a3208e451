"""Variables in rubrics: filled where a request has them, literal where not, and never more than was given."""

import json
import logging
import tracemalloc
from time import process_time
from typing import Any
from uuid import uuid4

import jinja2
import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError

from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import RunResult, parse_request
from gradeloop.errors import InvalidRequest
from gradeloop.grading.templates import REQUEST_STEPS, fill
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


def test_what_cannot_be_filled_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("{{ wo }}", "criteria[0].description: 'wo' is undefined; the variables are: who"),
        ("{{ who.mail.host }}", "criteria[0].description: 'dict object' has no attribute 'mail'; the variables are: who"),
        ("{{ who", "unexpected end of template"),
        ("{{ who.__class__ }}", "has no attribute '__class__'"),
        ("{{ who.items() }}", "'call' is not taken in a rubric"),
        ("{{ self }}", "'self' is undefined; the variables are: who"),
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
        ("{{ who" + "[0]" * 9000 + " }}", "line 1: the template has more than 5000 expressions; shorten it"),
        ("{{ range(9) }}", "'call' is not taken in a rubric"),
    ]
    for text, why in rows:
        with subtests.test(text=text):
            with pytest.raises(InvalidRequest) as caught:
                filled(text, who={})

            assert why in str(caught.value)


VALUES: dict[str, Any] = {
    "user": {"name": "Ada <b>L</b>", "mails": ["a@x", "B@y"], "age": 36, "items": [1, 2]},
    "rows": [{"id": 2, "word": "b"}, {"id": 1, "word": "C"}, {"id": 3, "word": "a"}],
    "words": ["b", "C", "a"],
    "numbers": [3, 1, 2],
    "said": "  one 'two' & \"three\" four-five (six) 😀  ",
    "json": '{"a": [1, {"b": null}]}',
    "rate": -1.55,
    "less": -500,
    "empty": [],
    "dash": ["-"],
    "yes": True,
    "none": None,
}

AS_JINJA = (
    "{{ user.name }}, {{ user['age'] }} and {{ user.items }}{{ '' }}{# nobody reads this #}\n\n",
    "  {%- if yes and not empty %} yes {% elif words %} words {% else %} no {% endif -%}  .",
    "{% if empty %}a{% elif none %}b{% else %}c{% endif %}",
    "{% for row in rows %}{{ loop.index }}/{{ loop.length }} {{ row.word }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for row in rows if row.id > 1 %}{{ loop.index0 }}{{ loop.first }}{{ row.word }}{% else %}none{% endfor %}",
    "{% for row in rows if row.id > 9 %}{{ row.word }}{% else %}none{% endfor %}{% for key in user %}{{ key }};{% endfor %}",
    "{% for user in words %}{{ user }}{% endfor %}{{ user.age }}{% for c in said %}{% if c is upper %}{{ c }}{% endif %}{% endfor %}",
    "{{ 'a' if yes else 'b' }}{{ 'a' if none }}{{ ('a' if none) is defined }}{{ ('a' if none)|default('d') }}",
    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 'b' in words }}{{ 'b' not in words }}",
    "{{ 'age' in user }}{{ 1 == 1.0 }}{{ 2 != 2 }}{{ 2 >= 3 or 2 <= 3 }}",
    "{{ nobody|default('no') }}{{ nobody is defined }}{{ user.nobody is undefined }}",
    "{{ none or 'x' }}{{ '' and 'x' }}{{ empty|default('e', true) }}",
    "{{ words|sort|join(',') }} {{ words|sort(case_sensitive=true)|join }} {{ rows|sort(attribute='word')|join(';', attribute='id') }}",
    "{{ rows|sort(reverse=true, attribute='id')|first }} {{ words|last }} ",
    "{{ numbers|sum }} {{ rows|sum('id') }} {{ numbers|sum(start=0.5) }}",
    "{{ said|upper|trim }}|{{ said|lower }}|{{ said|title }}|{{ said|capitalize }}",
    "{{ said|trim(' o') }}|{{ said|wordcount }}|{{ said|length }}",
    "{{ said|truncate(12) }}|{{ said|truncate(12, true) }}|{{ said|truncate(12, false, '!', 0) }}",
    "{{ said|reverse }}|{{ said|replace('t', 'T', 1) }}",
    "{{ said|tojson }} {{ user|tojson }} {{ rows|tojson(2) }} {{ json|string }} ",
    "{{ user.name|striptags }} {{ said|urlencode }} {{ user|urlencode }}",
    "{{ rate|round }} {{ rate|round(1) }} {{ rate|round(1, 'ceil') }} {{ rate|abs }} {{ rate|int }} {{ 'x'|int(7) }} {{ 'ff'|int(0, 16) }}",
    "{{ 5|round(less) }} {{ 5.25|round(1000000) }} {{ words|tojson(12) }}",
    "{{ rows|tojson(0) }} {{ rows|tojson('--') }} {{ rows|tojson(less) }} {{ rows|tojson(330) }}",
    "{{ '1e3'|float }} {{ 'x'|float(0.5) }} {{ words|list }} {{ 'abc'|list|join('-') }} {{ rows[0].id is odd }} {{ 4 is divisibleby 2 }}",
    "{{ none is none }}{{ yes is true }}{{ yes is sameas true }}{{ said is string }}",
    "{{ user is mapping }}{{ rate is number }}{{ 'b' is in words }}",
    "{% raw %}{{ user }}{% endraw %}{{ words|join(*dash) }}",
)


def test_a_template_says_what_it_says_in_jinja2(subtests: pytest.Subtests) -> None:
    for text in AS_JINJA:
        with subtests.test(text=text):
            plain = jinja2.Environment(
                undefined=jinja2.StrictUndefined,
                keep_trailing_newline=True,
                finalize=lambda value: (
                    json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) or value is None else value
                ),
            )
            plain.policies["json.dumps_kwargs"] = {"ensure_ascii": False}

            expected = plain.from_string(text.replace("user.items", "user['items']")).render(json.loads(json.dumps(VALUES)))

            assert filled("x" + text + "x", **VALUES) == "x" + expected + "x"


def test_a_value_that_python_makes_an_iterator_of_is_written_as_json() -> None:
    assert filled("{{ words|reverse }} {{ user|reverse|first }} {{ words|reverse is sameas(words|reverse)}}", **VALUES) == (
        '["a", "C", "b"] items true'
    )


LONG = "x" * 60_000
MANY: list[Any] = [str(at) for at in range(7000)]
DEEP: list[Any] = MANY
for _ in range(100):
    DEEP = [DEEP]

ENDLESS = {
    "joined by itself": ("{{ v|join(v) }}", LONG),
    "sorted by what is sorted": ("{{ v|sort(attribute=(" * 8 + "v" + "|sort|first))" * 8 + " }}" + "{{ v|sort|length }}" * 400, MANY),
    "sorted again and again": ("{% if v" + "|sort" * 90 + " %}{% endif %}" * 1, MANY),
    "summed into itself": ("{{ v|sum(start=v) }}", [["a"]]),
    "stripped of all that it has": ("{{ v|trim(v) }}", LONG),
    "quoted again and again": ("{{ v" + "|tojson" * 90 + " }}", '"' * 30_000),
    "a power of ten": ("{{ 5.5|round(1000000000, 'ceil') }}", 0),
    "an indent": ("{{ v|tojson(1000000000) }}", MANY),
    "an indent of what is deep": ("{{ v|tojson(100) }}", DEEP),
    "an integer": ("{% if v|int(0, 2) is divisibleby(v|int(0, 2)) %}{% endif %}" * 500, "1" * 60_000),
    "a loop that writes nothing": ("{% for c in v %}{% if c == v %}{% endif %}{% endfor %}", LONG),
    "loops over nothing to do": ("{% for c in v %}{% endfor %}" * 1000, LONG),
    "a loop that compares": ("{% for c in v if v in v %}{% endfor %}", LONG),
    "a text that is compared": ("{% if v == w %}{% endif %}" * 2500, LONG),
    "a title": ("{% if v|title|title|title|title|title|title %}{% endif %}" * 900, "<(" * 30_000),
    "a replacement": ("{% if v|replace('x', w) %}{% endif %}", LONG),
    "many expressions": ("{{ w }}" * 8000, 0),
    "many arguments": ("{{ v|join(" + "v," * 20_000 + ") }}", 0),
    "parentheses": ("{{ " + "(" * 60 + "v" + ")" * 60 + " }}", 0),
    "a chain": ("{{ v" + ".a" * 4000 + " }}", {}),
}


LARGE = (
    *("joined by itself", "summed into itself", "quoted again and again", "a power of ten", "an indent", "an indent of what is deep"),
    *("a replacement", "many expressions", "many arguments"),
)
"""Those that would write much; tracing of memory would make those that compute take ten times as long."""


def test_a_template_that_would_take_for_ever_or_all_memory_is_refused_soon(subtests: pytest.Subtests) -> None:
    for name, (text, value) in ENDLESS.items():
        with subtests.test(name=name):
            if name in LARGE:
                tracemalloc.start()
            began = process_time()
            try:
                with pytest.raises(InvalidRequest, match=r"^criteria\[0\].description[:,] "):
                    filled(text, v=value, w=value if isinstance(value, str) and len(value) < 30_000 else "x" * 60)
                taken, (_, peak) = process_time() - began, tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()

            assert peak < 64 * 1024 * 1024
            assert taken < 20, "tracemalloc slows it tenfold"


def test_the_texts_of_a_rubric_share_their_steps() -> None:
    rubric = Rubric.model_validate({"criteria": ["{% if v|upper %}a{% endif %}" for _ in range(60)]})

    assert fill(rubric, {"v": "x" * (REQUEST_STEPS // 200)})
    with pytest.raises(InvalidRequest, match=r"^criteria\[\d\d\].description: filling it takes more than 2000000 steps; filter, compare"):
        fill(rubric, {"v": LONG})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ long|truncate(1) }}", "the template cannot be filled: expected length >= 3, got 1; correct it"),
        ("{{ many|truncate }}", "'list' object has no attribute 'rsplit'; correct it"),
        ("{{ 5|round('x') }}", "the template cannot be filled: '<' not supported between instances of 'int' and 'str'; correct it"),
        ("{{ many is nothing }}", "the test 'nothing' is not taken"),
        ("{{ long|int(0, 2) }}", "an integer has 60000 bits, 16384 at most; write it as a text"),
    ],
)
def test_arguments_that_a_filter_cannot_take_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        filled(text, long="1" * 60_000, many=[1] * 300)

    assert why in str(caught.value)


def test_filling_changes_no_variable() -> None:
    variables = json.loads(json.dumps(VALUES))
    for text in AS_JINJA:
        filled(text, **variables)

    assert variables == VALUES


@pytest.mark.parametrize("name", ["joined by itself", "sorted again and again", "summed into itself", "a title"])
async def test_a_thread_with_an_endless_template_ends_at_its_first_task(
    client: Client, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    text, value = ENDLESS[name]
    caplog.set_level(logging.WARNING, "temporalio")
    async with serving(client, draft(), grade()) as served:
        raw = request({"criteria": [text]}, vars={"v": value, "w": "x"})
        handle = await client.start_workflow("GradingThread", raw, id=f"endless-{uuid4()}", task_queue=served.task_queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        history = await handle.fetch_history()

    assert "criteria[0].description" in str(failed.value.cause)
    assert sum(event.HasField("workflow_task_failed_event_attributes") for event in history.events) == 0
    assert not [record for record in caplog.records if "deadlock" in record.getMessage().lower()]


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


async def test_what_is_judged_is_never_a_template_and_never_coerced(client: Client) -> None:
    texts = ("1.10", "null", '["a"]', "{{ name }}", "{% for %}", '{"a": 1}', "007", "true")
    rubric = {"prompt": "{{ rubric }} {{ output }}", "criteria": ["greets {{ name }}"]}
    async with serving(client, grade(0, row("c1"))) as served:
        for text in texts:
            served.models.answers["generator"] = lambda *_, text=text: text
            result = await served.run(request(rubric, {"role": "user", "content": text}, vars={"name": "Ada"}))

            asked = served.models.requests_of("grader")[-1]
            assert result.output == text
            assert asked.messages[0].content.count("greets Ada") == 1
            assert f'"text": {json.dumps(text)}}}' in asked.messages[0].content
