"""Tests in promptfoo's format, made by a seed: every type that both sides have, at the edges, negated, weighed, in sets and in every form.

What a scripted judge says stands in the tests' texts; `lab.scripted_verdict` says how.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]

GRADER = "openai:chat:gpt-5-mini"
EMBEDDER = "openai:embedding:text-embedding-3-large"
SEED = 45
COUNT = 300


@dataclass(frozen=True)
class GeneratedTest:
    """A test, and the kind of difference to which it is expected to come, if any."""

    name: str
    fields: JsonObject
    differs: str = ""


@dataclass(frozen=True)
class GeneratedSuite:
    """A configuration: its tests, and what they have in common."""

    name: str
    head: JsonObject
    tests: tuple[GeneratedTest, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the configuration with its files, and return its path."""
        (folder / self.name).mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / self.name / name).write_text(text, encoding="utf-8")
        path = folder / self.name / "promptfooconfig.yaml"
        tests = [{"description": test.name, **test.fields} for test in self.tests]
        path.write_text(json.dumps({**self.head, "tests": tests}, ensure_ascii=False, indent=1), encoding="utf-8")
        return path


def _one(kind: str, value: object = None, **more: object) -> JsonObject:
    return {"type": kind} | ({} if value is None else {"value": value}) | more


CHECKS: tuple[tuple[str, Any, tuple[str, ...], JsonObject], ...] = (
    ("contains", "5 days", ("It takes 5 days.", "It takes 5 DAYS."), {}),
    ("contains", 5, ("It takes 5 days.", "It takes four."), {}),
    ("icontains", "5 Days", ("It takes 5 dAYs.", "It takes days."), {}),
    ("contains-all", ["red", "blue"], ("blue, red", "blue"), {}),
    ("contains-all", 'red, "blue, green"', ("blue, green and red", "red blue"), {}),
    ("contains-any", ["red", "blue"], ("so blue", "so green"), {}),
    ("icontains-all", ["Red", "bLue"], ("BLUE RED", "BLUE"), {}),
    ("icontains-any", "Red,Blue", ("BLUE", "green"), {}),
    ("starts-with", "Dear", ("Dear Ada", " Dear Ada"), {}),
    ("equals", "yes", ("yes", "Yes"), {}),
    ("equals", 7, ("7", "7.0"), {}),
    ("equals", {"a": [1, 2]}, ('{"a": [1,2]}', '{"a": [2, 1]}', "no JSON"), {}),
    ("regex", r"\b\d{3}-\d{4}\b", ("Call 555-1234 now", "Call 555-12345"), {}),
    ("regex", r"^(?<year>\d{4})$", ("2026", "20267", "٢٠٢٦"), {}),
    ("regex", r"^[^\w]+$", ("é!", "a!", "!?"), {}),
    ("regex", r"a.c$", ("abc", "abc\nd", "a\u2028c"), {}),
    ("regex", r"^a\s+b$", ("a\u00a0\ufeffb", "ab"), {}),
    ("regex", r"[\]\/-]\$\u{2}|\cJ", ("/$uu", "x\ny", "/$u"), {}),
    ("regex", r"(?=\d)x|a(?!b)", ("ac", "ab"), {}),
    ("regex", r"(a+)-\1$", ("aa-aa", "aa-aaa"), {}),
    ("is-json", None, ('{"a": 1}', "[1, 2", "7"), {}),
    ("is-json", {"type": "object", "required": ["a"]}, ('{"a": 1}', '{"b": 1}', "none"), {}),
    ("is-json", "type: object\nrequired: [a]", ('{"a": 1}', '{"b": 1}'), {}),
    ("contains-json", None, ('So: {"a": 1}.', "So: {a}."), {}),
    ("contains-json", {"type": "object", "required": ["a"]}, ('First {"b": 1}, then {"a": 2}', 'So: {"b": 1}'), {}),
    ("levenshtein", "kitten", ("kitten", "sitting", "sit", "nothing like it"), {}),
    ("levenshtein", "kitten", ("sitting", "sittings"), {"threshold": 3}),
    ("rouge-n", "the cat sat here", ("the cat sat here", "the cat sat", "a dog ran there"), {}),
    ("rouge-n", "the cat sat here", ("the cat ran off", "the dog ran off"), {"threshold": 0.5}),
    ("bleu", "the cat sat on the red mat", ("the cat sat on the red mat", "the cat sat on a mat", "no"), {}),
    ("bleu", ["one two three four", "the cat sat on the mat"], ("the cat sat on the mat", "one two"), {"threshold": 0.9}),
    ("word-count", 3, ("one two three", "one two", "one  two\nthree"), {}),
    ("word-count", {"min": 2, "max": 3}, ("one two", "one", "one two three four"), {}),
    ("word-count", {"max": 2}, ("one two", "one two three"), {}),
    ("is-refusal", None, ("I'm sorry, but I can't help with that.", "Here you are."), {}),
    ("is-xml", None, ("<a><b>1</b></a>", "<a><b></a>", "text"), {}),
    ("is-xml", "a.b", ("<a><b>1</b></a>", "<a><c>1</c></a>"), {}),
    ("contains-xml", None, ("So: <a>1</a>.", "So: a."), {}),
    ("is-html", None, ("<html><body><p>Hi</p></body></html>", "Hi <b>there"), {}),
    ("contains-html", None, ("So: <p>Hi</p> and on", "So: Hi"), {}),
    ("is-sql", None, ("SELECT a FROM b WHERE c = 1", "SELECT FROM WHERE"), {}),
    ("contains-sql", None, ("Run:\n```sql\nSELECT a FROM b\n```", "Run nothing"), {}),
)
"""A type, its value, texts that meet it or do not, and further keys."""

CODE: tuple[tuple[str, Any, tuple[str, ...], JsonObject], ...] = (
    ("javascript", "output.length > 3", ("abcd", "abc"), {}),
    ("javascript", "output.length / 10", ("abcde", "a"), {"threshold": 0.5}),
    ("javascript", "output.length - 5", ("abcdef", "abcde"), {}),
    ("javascript", "({pass: output === 'x', score: 0.25, reason: 'so'})", ("x", "y"), {}),
    ("javascript", "const n = output.length;\nreturn n === context.vars.n;", ("abc", "ab"), {}),
    ("javascript", "file://check.js", ("yes sir", "no sir"), {}),
    ("python", "len(output) > 3", ("abcd", "abc"), {}),
    ("python", "len(output) / 10", ("abcde", "a"), {"threshold": 0.5}),
    ("python", "file://check.py", ("yes sir", "no sir"), {}),
    ("python", "file://check.py:score", ("abcdefgh", "ab"), {}),
)

JUDGED = ("llm-rubric", "g-eval", "answer-relevance", "context-recall", "context-relevance", "context-faithfulness")
"""Types whose scores run from 0 to 1; the others pass or fail."""

TWO_SIDED = ("factuality", "model-graded-factuality", "model-graded-closedqa", "conversation-relevance")
SENTENCES = " ".join(f"Sentence {number} of it." for number in range(1, 10))

UNFIT = (
    *("[empty]", "[no pass]", "[no score]", "[null pass]", "[word pass]", "[beyond]", "[prose]", "[brace]", "[object first]"),
    *("[500 once a]", "[500]", "[prose once b]"),
)
"""What a judge says that is no verdict."""

NO_VERDICT, NEGATED, AS_IT_STANDS, NOTHING, COMPARED = "no verdict", "negated", "as it stands", "nothing decides", "compared"


def context_of(word: str) -> JsonObject:
    """Return the variables of a test on a context, with a word of the judge's in each."""
    return {"reply": f"An answer. {word}", "query": f"A question? {word}", "context": f"{SENTENCES} The tenth {word}."}


def judged(kind: str, score: float, threshold: float | None, *, negated: bool) -> GeneratedTest:
    """Return a test that a model judges with a score."""
    words = f"[score {score}]" if score else "[fail]"
    variables = context_of(f"{words} [cosine {score}]")
    if kind == "answer-relevance":
        variables["query"] = "A question?"
    value = None if kind in {"answer-relevance", "context-relevance", "context-faithfulness"} else "It is so."
    assertion = _one(f"{'not-' if negated else ''}{kind}", value) | ({} if threshold is None else {"threshold": threshold})
    return GeneratedTest(f"{assertion['type']} {score} at {threshold}", {"vars": variables, "assert": [assertion]})


def _checked(rows: tuple[tuple[str, Any, tuple[str, ...], JsonObject], ...]) -> Iterator[GeneratedTest]:
    for number, (kind, value, texts, more) in enumerate(rows):
        for at, text in enumerate(texts):
            for negated in ("", "not-"):
                test = {"vars": {"reply": text, "n": 3}, "assert": [_one(negated + kind, value, **more)]}
                differs = NEGATED if negated and kind in {"javascript", "python"} else AS_IT_STANDS if "{a}" in text else ""
                yield GeneratedTest(f"{negated}{kind} {number}.{at}", test, differs)


def _model_graded() -> Iterator[GeneratedTest]:
    for kind in JUDGED:
        default = {"llm-rubric": 0.5, "g-eval": 0.7}.get(kind, 0.5)
        for score, threshold in ((default, None), (default - 0.1, None), (0.8, 0.8), (0.7, 0.8), (0.0, None)):
            yield judged(kind, round(score, 1), threshold, negated=False)
            yield judged(kind, round(score, 1), threshold, negated=True)
    for kind in TWO_SIDED:
        for word in ("[score 1]", "[fail]"):
            for negated in ("", "not-"):
                value = None if kind == "conversation-relevance" else "It is so."
                differs = NEGATED if negated and value else ""
                test = {"vars": {"reply": f"An answer. {word}"}, "assert": [_one(negated + kind, value)]}
                yield GeneratedTest(f"{negated}{kind} {word}", test, differs)


def _similar() -> Iterator[GeneratedTest]:
    for cosine, threshold in ((0.76, None), (0.74, None), (0.9, 0.9), (0.89, 0.9), (0.3, None)):
        for kind in ("similar", "not-similar", "similar:cosine"):
            assertion = _one(kind, "It is so.", provider=EMBEDDER) | ({} if threshold is None else {"threshold": threshold})
            test = {"vars": {"reply": f"So. [cosine {cosine}]"}, "assert": [assertion]}
            yield GeneratedTest(f"{kind} {cosine} at {threshold}", test, NEGATED if kind == "not-similar" and cosine == threshold else "")
    texts = ["It is so. [cosine 0.2]", "It is so."]
    for kind in ("similar", "not-similar"):
        for cosine in (0.8, 0.5):
            test = {"vars": {"reply": f"So. [cosine {cosine}]"}, "assert": [_one(kind, texts, provider=EMBEDDER)]}
            yield GeneratedTest(f"{kind} to several {cosine}", test)


CHAT = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "{{output}} as to {{rubric}} for {{who}}. JSON: pass, score"}]
CATEGORY = 'Compare {{completion}} with {{ideal}} for {{input}}: {"category": "A/B/C/D/E", "reason": "..."}'
PROMPTS: Mapping[str, Any] = {
    "a text": "Judge {{output}} as to {{rubric}}, for {{who}}. Answer {pass, score, reason}",
    "a chat": CHAT,
    "a chat as text": json.dumps(CHAT),
    "a file": "file://judge.txt",
    "a file of a chat": "file://judge.json",
}


def _prompted() -> Iterator[GeneratedTest]:
    for name, prompt in PROMPTS.items():
        for word in ("[score 0.6]", "[fail]"):
            variables = {"reply": f"An answer. {word}", "who": "Ada"}
            own = {"vars": variables, "assert": [_one("llm-rubric", "It is so.", rubricPrompt=prompt)]}
            shared = {"vars": variables, "options": {"rubricPrompt": prompt}, "assert": [_one("llm-rubric", "It is so.", threshold=0.6)]}
            yield GeneratedTest(f"{name} of an assertion {word}", own)
            yield GeneratedTest(f"{name} of a test {word}", shared)
    for word in "ABCDE":
        for scores in ({}, {"subset": 0.5, "superset": 0, "disagree": 0.2, "differButFactual": 0}):
            options = {"rubricPrompt": CATEGORY} | ({"factuality": scores} if scores else {})
            test = {"vars": {"reply": f"An answer. [category {word}]"}, "options": options, "assert": [_one("factuality", "It is so.")]}
            yield GeneratedTest(f"category {word} {'scored' if scores else ''}", test)
    criteria: tuple[object, ...] = (["It is kind", "It is so [needs days]"], {"kind": "It is so [needs days]"})
    for criterion in (*criteria, "It is so [needs {{need}}]", "file://criterion.txt"):
        for text in ("five days", "none"):
            test = {"vars": {"reply": text, "need": "days"}, "assert": [_one("llm-rubric", criterion)]}
            yield GeneratedTest(f"a criterion {str(criterion)[:12]} {text}", test)


def _combined(dice: random.Random) -> Iterator[GeneratedTest]:
    """Yield tests of several assertions, weighed, in sets, and with thresholds at the edge of what they come to."""
    words = ("red", "green", "blue")
    for number in range(40):
        reply = " ".join(dice.sample(words, dice.randint(0, 3)))
        assertions: list[JsonObject] = []
        for _ in range(dice.randint(2, 4)):
            one = _one(dice.choice(("contains", "not-contains", "icontains")), dice.choice(words))
            if dice.random() < 0.3:
                one = _one("llm-rubric", "It is so.") | ({"threshold": 0.6} if dice.random() < 0.5 else {})
            assertions.append(one | ({"weight": dice.choice((0.5, 2, 3))} if dice.random() < 0.5 else {}))
        if dice.random() < 0.5:
            members = [_one("contains", word) | ({"weight": 2} if dice.random() < 0.3 else {}) for word in dice.sample(words, 2)]
            group = {"type": "assert-set", "assert": members} | ({"threshold": 0.5} if dice.random() < 0.5 else {})
            assertions.append(group | ({"weight": 2} if dice.random() < 0.5 else {}))
        if dice.random() < 0.3:
            assertions.append(_one("contains", "nowhere", weight=0))
        test: JsonObject = {"vars": {"reply": f"{reply} [score {dice.choice((0.5, 0.6, 1))}]"}, "assert": assertions}
        yield GeneratedTest(f"together {number}", test | ({"threshold": dice.choice((0.25, 0.5, 0.75))} if dice.random() < 0.6 else {}))


def _varied() -> Iterator[GeneratedTest]:
    """Yield tests with variables in lists and files, and with transforms."""
    listed = {"reply": ["red", "blue", "green"], "word": ["blue", "red"]}
    yield GeneratedTest("lists", {"vars": listed, "assert": [_one("contains", "{{word}}")]})
    one = {"vars": {"reply": "{{word}} x", "word": "blue"}, "assert": [_one("contains", "blue")]}
    yield GeneratedTest("a variable in another", one)
    unexpanded = {"vars": {"reply": "ab", "word": ["a", "b"]}, "options": {"disableVarExpansion": True}}
    yield GeneratedTest("a list that stays one", unexpanded | {"assert": [_one("contains", "{{word[1]}}")]})
    for name in ("file://reply.txt", "file://reply.json", "file://reply.yaml"):
        yield GeneratedTest(f"a variable of {name}", {"vars": {"reply": name}, "assert": [_one("contains", "blue")]})
    for code in ("output.toUpperCase()", "file://upper.js", "output + context.vars.more", "file://upper.py"):
        more = {"vars": {"reply": "blue", "more": "BLUE"}, "assert": [_one("contains", "BLUE")]}
        yield GeneratedTest(f"a transform of the test {code[:18]}", more | {"options": {"transform": code}})
        own = {"vars": {"reply": "blue", "more": "BLUE"}, "assert": [_one("contains", "BLUE", transform=code), _one("equals", "blue")]}
        yield GeneratedTest(f"a transform of an assertion {code[:18]}", own)
    prefixed = {"vars": {"reply": "b"}, "options": {"prefix": "a", "suffix": "c"}, "assert": [_one("equals", "abc")]}
    yield GeneratedTest("a prefix and a suffix", prefixed)
    given = {"vars": {"reply": "b"}, "providerOutput": "given", "assert": [_one("equals", "given")]}
    yield GeneratedTest("a given output", given)
    made = {"vars": {"reply": "b"}, "options": {"transformVars": "({...vars, reply: vars.reply + vars.reply})"}}
    yield GeneratedTest("made variables", made | {"assert": [_one("equals", "bb")]})
    for score in (0.4, 0.6):
        docs = json.dumps({"docs": [f"Sentence {at}. [score {score}]" for at in range(1, 11)], "said": "x"})
        context = "JSON.parse(output).docs"
        assertion = _one("context-recall", "It is so.", contextTransform=context)
        yield GeneratedTest(f"a context of its own {score}", {"vars": {"reply": docs}, "assert": [assertion]})


def _different() -> Iterator[GeneratedTest]:
    """Yield tests that are known to come to something else."""
    for at, word in enumerate(UNFIT):
        for kind in ("llm-rubric", "not-llm-rubric"):
            reply = word.replace("once ", f"once {at}{kind}")
            yield GeneratedTest(
                f"{kind} {word}", {"vars": {"reply": f"It snows. {reply}"}, "assert": [_one(kind, "It is so.")]}, NO_VERDICT
            )
    for text in ("1.10", "null", '{"a":   1}'):
        test = {"vars": {"reply": text}, "assert": [_one("llm-rubric", f"It is so. [needs {text}]")]}
        yield GeneratedTest(f"as written {text}", test, AS_IT_STANDS)
    for text in ("{{ 1 + 1 }}", "{% if true %}2{% endif %}"):
        yield GeneratedTest(f"data {text}", {"vars": {"reply": text}, "assert": [_one("contains", "2")]}, AS_IT_STANDS)
    nothing = {"vars": {"reply": "x"}, "assert": [_one("contains", "y", weight=0)]}
    yield GeneratedTest("weight 0 alone", nothing, NOTHING)
    yield GeneratedTest("no assertions", {"vars": {"reply": "x"}}, NOTHING)


def _with_defaults() -> Iterator[GeneratedTest]:
    """Yield tests whose defaults have an assertion, a variable, a threshold and a transform."""
    for word in ("blue", "red"):
        for name, more in (
            ("alone", {}),
            ("with one of its own", {"assert": [_one("equals", "BLUE")]}),
            ("with a threshold", {"threshold": 1, "assert": [_one("equals", "RED")]}),
            ("without the defaults", {"options": {"disableDefaultAsserts": True}, "assert": [_one("equals", "RED")]}),
            ("with a transform", {"options": {"transform": "output"}, "assert": [_one("equals", "red")]}),
            ("with a variable", {"vars": {"wanted": "RED"}, "assert": [_one("contains", "{{wanted}}")]}),
        ):
            yield GeneratedTest(f"defaults {name} {word}", {**more, "vars": {"reply": word, **more.get("vars", {})}})  # type: ignore[dict-item]


def _drafted() -> Iterator[GeneratedTest]:
    """Yield tests of the call that drafts."""
    rows: tuple[tuple[str, JsonObject], ...] = (
        *(("latency", {"threshold": limit}) for limit in (100_000, 0)),
        *(("cost", {"threshold": limit}) for limit in (1, 0)),
        *(("perplexity", {"threshold": limit}) for limit in (3, 1.5)),
        *(("perplexity-score", {"threshold": limit}) for limit in (0.3, 0.4)),
        ("perplexity", {}),
        *(("finish-reason", {"value": reason}) for reason in ("stop", "length")),
        *(("contains", {"value": word}) for word in ("DRAFT", "no")),
    )
    for at, (kind, more) in enumerate(rows):
        for negated in ("", "not-"):
            yield GeneratedTest(f"{negated}{kind} {at}", {"vars": {"ask": "[draft] it"}, "assert": [_one(negated + kind, **more)]})


WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CALLS = ('[call weather {"city": "Oslo"}]', '[call weather {"town": "Oslo"}]', "[call weather {]", "[call nothing {}]", "no call [draft]")


def _called(*kinds: str) -> Iterator[GeneratedTest]:
    """Yield tests of a draft that calls functions."""
    for kind in kinds:
        for call in CALLS:
            yield GeneratedTest(f"{kind} {call}", {"vars": {"ask": call}, "assert": [_one(kind)]})


def _compared() -> Iterator[GeneratedTest]:
    """Yield tests of outputs that are compared with one another."""
    for best in ("first", "second"):
        variables = {"a": f"Option A.{' [best]' * (best == 'first')}", "b": f"Option B.{' [best]' * (best == 'second')}"}
        yield GeneratedTest(f"the best is the {best}", {"vars": variables, "assert": [_one("select-best", "Is the best")]}, COMPARED)
        scored = [_one("contains", "[best]"), _one("contains", "Option", weight=2), _one("max-score")]
        yield GeneratedTest(f"the highest is the {best}", {"vars": variables, "assert": scored}, COMPARED)
        summed = [_one("contains", "[best]"), _one("icontains", "option"), _one("max-score", {"method": "sum", "weights": {"contains": 3}})]
        yield GeneratedTest(f"the highest sum is the {best}", {"vars": variables, "assert": summed}, COMPARED)
        least = [_one("contains", "[best]"), _one("contains", "nothing"), _one("max-score", {"threshold": 0.9})]
        yield GeneratedTest(f"none is high enough, the {best}", {"vars": variables, "assert": least}, COMPARED)


FILES: Mapping[str, str] = {
    "check.js": "module.exports = (output, context) => ({pass: output.startsWith('yes'), score: 0.5, reason: 'so'});\n",
    "check.py": (
        "def get_assert(output, context):\n    return output.startswith('yes')\ndef score(output, context):\n    return len(output) / 8\n"
    ),
    "upper.js": "module.exports = (output, context) => output.toUpperCase();\n",
    "upper.py": "def get_transform(output, context):\n    return output.upper()\n",
    "judge.txt": "Judge {{output}} as to {{rubric}}. Answer {pass, score, reason}",
    "judge.json": json.dumps(CHAT),
    "criterion.txt": "It is so. [needs days]",
    "reply.txt": "It is blue.\n",
    "reply.json": '{"color": "blue"}',
    "reply.yaml": "color: blue\n",
}


def _turn(test: GeneratedTest, seen: Counter[str]) -> int:
    """Return how many tests of the same type came before, so that each type has its share."""
    kind = str(test.fields["assert"][0]["type"])
    seen[kind] += 1
    return seen[kind]


def suites(seed: int = SEED, count: int = COUNT) -> tuple[GeneratedSuite, ...]:
    """Return the suites of a seed, with as many tests in all; each kind of test has its share."""
    dice = random.Random(seed)
    options = {"provider": {"text": GRADER, "embedding": EMBEDDER}}
    fixed = [*_combined(dice), *_prompted(), *_varied(), *_different(), *_similar()]
    drafted, compared, with_defaults = tuple(_drafted()), tuple(_compared()), tuple(_with_defaults())
    spread = [*_checked(CHECKS), *_checked(CODE), *_model_graded()]
    functions = {"tools": [{"type": "function", "function": WEATHER}], "functions": [WEATHER]}
    kinds = {"tools": ("is-valid-openai-tools-call",), "functions": ("is-valid-openai-function-call", "is-valid-function-call")}
    called = [
        (key, {"id": "openai:chat:gpt-4.1-mini", "config": {key: listed}}, tuple(_called(*kinds[key]))) for key, listed in functions.items()
    ]
    left = count - sum(len(tests) for *_, tests in called) - len(fixed) - len(drafted) - len(compared) - len(with_defaults)
    dice.shuffle(spread)
    seen: Counter[str] = Counter()
    spread.sort(key=lambda test: _turn(test, seen))
    chosen = [*fixed, *spread[: max(left, 0)]]
    whole = {"prompts": ["{{reply}}"], "providers": ["echo"], "defaultTest": {"options": options}}
    model = {"id": "openai:chat:gpt-4.1-mini", "config": {"passthrough": {"logprobs": True}}, "transform": "output.toUpperCase()"}
    default = {"vars": {"wanted": "BLUE"}, "threshold": 0.5, "options": {"transform": "output.toUpperCase()"}}
    shared = default | {"assert": [_one("contains", "{{wanted}}")]}
    return (
        GeneratedSuite("defaults", {"prompts": ["{{reply}}"], "providers": ["echo"], "defaultTest": shared}, with_defaults),
        GeneratedSuite("echo", whole, tuple(chosen), FILES),
        GeneratedSuite("drafted", {"prompts": ["{{ask}}"], "providers": [model]}, drafted),
        *(GeneratedSuite(f"called by {key}", {"prompts": ["{{ask}}"], "providers": [provider]}, tests) for key, provider, tests in called),
        GeneratedSuite("compared", {"prompts": ["{{a}}", "{{b}}"], "providers": ["echo"], "defaultTest": {"options": options}}, compared),
    )


_HOOK_FILES: Mapping[str, str] = {
    "all.js": """
        exports.beforeAll = async ({ suite }, { hookName }) => {
          suite.prompts = [{ raw: '{{reply}} {{mark}}', label: 'marked' }];
          suite.defaultTest.vars = { ...suite.defaultTest.vars, mark: hookName };
          suite.defaultTest.assert.push({ type: 'contains', value: 'beforeAll' });
          return { suite: { ...suite, tests: [...suite.tests.slice(1), { description: 'added', vars: { reply: 'blue' } }] } };
        };
    """,
    "each.py": """
def beforeEach(context, options):
    test = context["test"]
    test["vars"]["reply"] = test["vars"]["reply"].upper() + " " + options["hookName"]
    test["assert"] = [*test.get("assert", []), {"type": "contains", "value": "BLUE beforeEach"}]
    return context
    """,
    "handler.js": """
        module.exports = async (hookName, context) => {
          if (hookName === 'beforeAll') context.suite.tests[0].vars.reply += ' blue';
          if (hookName === 'beforeEach') {
            context.test.vars.reply += '!';
            context.test.assert.push({ type: 'contains', value: `${context.test.vars.tone} blue!`, weight: 2 });
            context.test.threshold = 0.5;
          }
        };
    """,
    "handler.py": """
def handle(name, context):
    if name == "beforeEach" and context["test"]["vars"]["reply"] == "red":
        return {"test": {**context["test"], "vars": {"reply": "blue"}, "assert": context["test"]["assert"][:1]}}
    """,
}


def hooked() -> tuple[GeneratedSuite, ...]:
    """Return suites whose hooks decide what their tests come to: by their names, as functions for all hooks, changed in place."""
    head = {"prompts": ["{{reply}}"], "providers": ["echo"]}
    default = {"vars": {"tone": "kind"}, "assert": [_one("icontains", "blue")]}
    tests = tuple(
        GeneratedTest(f"hooked {reply}", {"vars": {"reply": reply}, "assert": [_one("not-contains", "r")]})
        for reply in ("kind", "red", "blue", ["kind blue", "green"])
    )
    rows = (
        ("all.js:beforeAll", "each.py:beforeEach"),
        ("handler.js:extensionHook",),
        ("handler.js",),
        ("handler.py:handle", "each.py:beforeEach"),
    )
    return tuple(
        GeneratedSuite(
            f"hooks {at}", {**head, "defaultTest": default, "extensions": [f"file://{name}" for name in names]}, tests, _HOOK_FILES
        )
        for at, names in enumerate(rows)
    )


_AFTER_FILES: Mapping[str, str] = {
    "adds.js": """
        exports.afterEach = async ({ test, result }, { hookName }) => {
          result.namedScores.length = result.response.output.length;
          result.namedScores.none = NaN;
          result.success = !result.success;
          result.score = 0.125;
          const parts = result.gradingResult.componentResults.map((part) => [part.pass, part.score, part.assertion.metric ?? null]);
          return { result: { ...result, metadata: { ...result.metadata, hookName, parts, level: test.metadata?.level ?? null } } };
        };
    """,
    "in_place.js": """
        module.exports = (name, context) => {
          if (name !== 'afterEach') return;
          context.result.metadata.seen = Object.keys(context.result.namedScores).length;
          if (context.test.vars.reply === 'kind') context.result.namedScores.Tone = 0.25;
        };
    """,
    "in_python.py": """
def afterEach(context, options):
    result = context["result"]
    if result["vars"]["reply"] == "red":
        raise ValueError("no red")
    answer = {"namedScores": {"flag": True, "word": "x", "py": 2}, "metadata": {"nested": {"none": None}}, "success": False}
    return {"result": {**answer, "response": {"metadata": {"by": options["hookName"]}}}}
    """,
    "nothing.py": """
def handle(name, context):
    return {"test": {"vars": {}}} if name == "afterEach" else None
    """,
}


def hooked_after() -> tuple[GeneratedSuite, ...]:
    """Return suites whose hooks add to what their tests came to, one of which fails for a test."""
    head = {"prompts": ["{{reply}}", "so {{reply}}"], "providers": ["echo"]}
    default = {"metadata": {"team": "a", "level": 1}, "assert": [_one("contains", "b") | {"metric": "Tone", "weight": 2}]}
    own = {
        "assert": [_one("contains", "so") | {"metric": "Tone"}, _one("javascript", "0.5") | {"metric": "Half"}],
        "metadata": {"level": 2},
    }
    tests = tuple(GeneratedTest(f"after {reply}", {"vars": {"reply": reply}, **own}) for reply in ("kind", "red", "blue"))
    whole = {**head, "defaultTest": default, "derivedMetrics": [{"name": "Twice", "value": "2 * length"}]}
    rows = (
        ("adds.js:afterEach",),
        ("in_place.js", "adds.js:afterEach"),
        ("adds.js:afterEach", "in_python.py:afterEach"),
        ("nothing.py:handle",),
    )
    return tuple(
        GeneratedSuite(f"hooks after {at}", {**whole, "extensions": [f"file://{name}" for name in names]}, tests, _AFTER_FILES)
        for at, names in enumerate(rows)
    )
