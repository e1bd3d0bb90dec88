import pytest

from stores.commits import advance
from stores.mongo import recent
from stores.mongo.recent import RecentCommits, RecentExecution
from tests.stores.writer import Execution


def execution(name: str, digest: str = "d") -> RecentExecution:
    position = Execution(execution_id=name, number=1).position()
    return RecentExecution(head=advance(None, position, digest, workspace_id="w"))


def test_the_newest_executions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_EXECUTIONS", 2)
    commits = RecentCommits()
    commits.keep(execution("a"))
    commits.keep(execution("b"))
    again = execution("a", digest="newer")
    commits.keep(again)
    commits.keep(execution("c"))
    assert commits.find("w", "a") is again
    assert commits.find("w", "b") is None
    assert commits.find("w", "c") is not None


def test_each_workspace_remembers_its_own() -> None:
    commits = RecentCommits()
    commits.keep(execution("a"))
    assert commits.find("other", "a") is None
