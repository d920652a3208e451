"""Ids of cases: the test's own, or one made of what it asks; the same from one run of a suite to the next."""

import hashlib
import json
import re
from collections import Counter

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.spot import Spot
from gradeloop.suites.fields import SuiteTest

SLUG_CHARACTERS = 32
"""Of a made id, before its ten hexadecimal digits: enough to tell what the case is about."""


class CaseIds:
    """The ids of one suite, each of which is given once."""

    def __init__(self) -> None:
        self._places: dict[str, Spot] = {}
        self._made: Counter[str] = Counter()

    def of(self, test: SuiteTest) -> str:
        """Return a test's own id, or one made of it; where others say the same, `-2`, `-3` is added in the order of the file."""
        if test.id is not None:
            return test.id
        made = made_id(test)
        self._made[made] += 1
        return made if self._made[made] == 1 else f"{made}-{self._made[made]}"

    def take(self, name: str, spot: Spot) -> None:
        """Note where a case stands.

        Raises:
            InvalidRequest: Another one has the same id; both places are named.
        """
        first = self._places.setdefault(name, spot)
        if first is not spot:
            raise InvalidRequest(f"{spot}: the id {clip(name)} is that of {first}, too; give each test an id of its own")


def made_id(test: SuiteTest) -> str:
    """Return an id made of a test's description, variables and messages, or of all of it where it has none of them.

    So it stays when prompts, rubric or output change, and two batches can be compared.
    """
    told = test.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    asked = {name: told[name] for name in ("description", "vars", "messages") if name in told} or told
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")).hexdigest()[:10]
    words = test.description or next((value for value in test.vars.values() if isinstance(value, str) and value.strip()), "")
    slug = re.sub(r"[^a-z0-9]+", "-", words[:200].lower()).strip("-")[:SLUG_CHARACTERS].rstrip("-")
    return f"{slug}-{digest}" if slug else f"case-{digest}"
