"""Servers that offer the same tools are kept once."""

from synthesis.tools.ingestion import NearDuplicates
from tests.synthesis.trajectories.servers import TEXT, server, tool


def of(*names: str, called: str = "Notes"):
    return server(*(tool(name, {"text": TEXT}) for name in names)).model_copy(update={"name": called})


def test_a_fork_under_another_name_is_a_duplicate_and_the_first_one_stays():
    kept = NearDuplicates()
    assert kept.duplicate_of(of("add", "list", "read", "find", called="Notes")) is None
    assert kept.duplicate_of(of("add", "list", "read", "find", called="My notes")) == "Notes"
    assert kept.duplicate_of(of("add", "list", "read", "drop", called="Other")) is None  # 3 of 5 tools


def test_namesakes_need_to_share_fewer_tools_but_do_need_to_share_some():
    kept = NearDuplicates()
    assert kept.duplicate_of(of("add", "list", "read", "find")) is None
    assert kept.duplicate_of(of("add", "list", "read", "drop")) == "Notes"
    assert kept.duplicate_of(of("sing", "dance", "read")) is None


def test_tools_of_the_same_name_with_other_arguments_are_other_tools():
    kept = NearDuplicates()
    assert kept.duplicate_of(of("add", "list", "read")) is None
    other = server(*(tool(name, {"city": TEXT}) for name in ("add", "list", "read")))
    assert kept.duplicate_of(other) is None
