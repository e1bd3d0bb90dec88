"""What a factory of deps takes, and what stands for it."""

from typing import Any

import pytest
from pydantic import BaseModel

from workflows.deps import DepsFactory, DepsReference
from workflows.durable import durable


class Customer(BaseModel):
    name: str


class Session:
    def __init__(self, customer: Customer) -> None:
        self.name = customer.name


async def open_session(customer: "Customer") -> Session:
    return Session(customer)


@pytest.mark.parametrize("build", [open_session, Session])
async def test_factory_gets_what_its_annotation_says(build: Any) -> None:
    factory = DepsFactory.of(build)
    one, other = [await factory.live({"name": "Ada"}) for _ in range(2)]
    assert one.name == other.name == "Ada"
    assert one is not other


def bare(value) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    pass


def nothing() -> None: ...


UNANNOTATED: list[Any] = [bare, nothing]


@pytest.mark.parametrize("build", UNANNOTATED)
def test_factory_without_an_annotated_parameter_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="needs one parameter with an annotation"):
        durable(deps_factory=build)


def test_reference_travels_without_the_value() -> None:
    submitted = {"b": 1, "a": ["x"]}
    reference = DepsReference.to("agent", submitted, Customer(name="Ada"))
    assert reference.value == Customer(name="Ada")
    assert reference.model_dump() == {
        "agent": "agent",
        "digest": "9bfce180614e8aaffe8a52084e7be3ee3b4c2e740cae2793550177f953f11c04",
    }
