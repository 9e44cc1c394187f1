"""The conversations that SFT replays beside its own data."""

from __future__ import annotations

from astra_jax.recipes import tiny_base
from astra_jax.recipes.tiny_base import write_replay
from astra_jax.sft.conversations import ConversationFile


def test_what_is_replayed_is_read_as_conversations_and_follows_from_the_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_base, "_REPLAYED", 30)
    for name in ("one", "again"):
        write_replay(tmp_path / name, seed=0)
    write_replay(tmp_path / "other", seed=1)
    one, again, other = ((tmp_path / name).read_bytes() for name in ("one", "again", "other"))
    assert one == again != other
    conversations = list(ConversationFile(tmp_path / "one"))
    assert len(conversations) == 30
    for conversation in conversations:
        assert [message.role for message in conversation.messages].count("user") == 1
        called = {call.name for message in conversation.messages for call in message.tool_calls}
        assert called < {tool.name for tool in conversation.tools}
        assert all(message.reasoning_content for message in conversation.messages if message.role == "assistant")
