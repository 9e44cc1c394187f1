"""Tool names are legal, unique and reversible."""

from hypothesis import given
from hypothesis import strategies as st

from synthesis.records import LEGAL_TOOL_NAME
from synthesis.tools.names import legal_names

names = st.lists(
    st.text(min_size=1, max_size=90) | st.sampled_from(["search", "search_2", "查询", "a b", "a-b"]), max_size=12
)


@given(names)
def test_every_name_becomes_legal_and_different_and_one_that_is_stays_as_it_is(found):
    legal = legal_names(found)
    assert len(legal) == len(found) == len(set(legal))
    assert all(LEGAL_TOOL_NAME.fullmatch(name) for name in legal)
    assert legal_names(legal) == legal


def test_a_doubled_name_does_not_take_the_name_of_a_later_tool():
    assert legal_names(["search", "search", "search_2"]) == ["search", "search_3", "search_2"]
