"""Fields are described by the docstrings below them, which are read when somebody asks."""

from pydantic import Field

from gradeloop.contract.base import Documented, Strict, describe_fields


class Base(Strict, Documented):
    """A base."""

    first: int = 0
    """The first,
    in two lines."""
    bare: int = 0


class Inner(Strict, Documented):
    """An inner model."""

    deep: int = 0
    """Deep inside."""


class Model(Base):
    """A model."""

    second: int = Field(default=0, alias="2nd")
    """The second."""
    own: int = Field(default=0, description="It has one.")
    """Not read."""
    inner: Inner | None = None
    """Another model."""


def test_a_json_schema_describes_each_field_by_its_docstring() -> None:
    properties = Model.model_json_schema()["properties"]

    assert {name: field.get("description") for name, field in properties.items()} == {
        "first": "The first,\nin two lines.",
        "bare": None,
        "2nd": "The second.",
        "own": "It has one.",
        "inner": "Another model.",
    }


def test_help_reads_the_descriptions_of_a_model_and_of_those_inside_it() -> None:
    before = Inner.model_fields["deep"].description
    describe_fields(Model)

    assert (before, Inner.model_fields["deep"].description) == (None, "Deep inside.")
    assert Model.model_fields["own"].description == "It has one."
