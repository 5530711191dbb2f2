"""The private names of LangGraph that the adapter builds on, pinned for the installed version."""

import pytest

pytest.importorskip("langgraph")

from langgraph.prebuilt import ToolNode

from outlast_langgraph import seams


def test_every_name_is_there() -> None:
    seams.check()


def test_missing_name_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ToolNode, "_execute_tool_sync")
    with pytest.raises(seams.UnknownLangGraph, match=r"ToolNode\._execute_tool_sync"):
        seams.check()
