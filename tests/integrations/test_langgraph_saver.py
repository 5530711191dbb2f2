"""StoreSaver: the official conformance kit, what is stored once, and what is never loaded."""

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("langchain")
conformance = pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.checkpoint.conformance.capabilities import Capability

from outlast.adapters import LocalStore, open_store
from outlast_langgraph import StoreSaver

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as store:
        yield store


async def test_every_test_of_the_official_conformance_kit_passes(store: LocalStore) -> None:
    @conformance.checkpointer_test(name="StoreSaver")  # type: ignore[untyped-decorator]
    async def saver() -> AsyncIterator[StoreSaver]:
        yield StoreSaver(store)

    report = await conformance.validate(saver)
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert report.passed_all()
    assert {name for name, result in report.results.items() if result.detected} == {one.value for one in Capability}
    assert sum(result.tests_passed for result in report.results.values()) >= 80
