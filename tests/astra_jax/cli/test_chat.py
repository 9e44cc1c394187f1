"""A talk in the terminal: the tools run, their responses are read by the next message, and a cut message is told."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astra_jax.chat.format import generation_prompt, render, tool_call_text
from astra_jax.checkpoints.policy import save_policy
from astra_jax.cli import chat as chat_module
from astra_jax.cli.command import main
from astra_jax.engine.interface import Generated, Sampling, Session, Told
from astra_jax.serve.policy import ServedPolicy
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records
from synthesis.records import Message, ToolCall
from tests.astra_jax.serve.running import served
from tests.astra_jax.serve.scripted_decoder import ScriptedDecoder
from tests.astra_jax.serve.test_chat import ROOMY

CALL = tool_call_text(ToolCall(id="c", name="find_flat", arguments={"owner": "Quartz Heron"}))


class Speaker(ScriptedDecoder):
    """Says one message after another."""

    def __init__(self, tokenizer: Any, *messages: str):
        super().__init__(tokenizer)
        self._left = list(messages)

    async def generate(
        self, ids: list[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        self.text = self._left.pop(0)
        return await super().generate(ids, sampling, session, told)

    def forget(self, session: Session) -> None:
        self._known.discard(session)

    async def close(self) -> None:
        pass


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    write_records(tmp_path / "environments", [tiny_environment()], kind="environment")
    return tmp_path / "environments"


@pytest.fixture
def talk(untrained, monkeypatch, capsys) -> Callable[..., tuple[str, Speaker]]:
    """Type lines, while the policy says messages; return what the terminal shows, and the decoder."""
    end_ids = (untrained.tokenizer.end_id, untrained.tokenizer.end_of_text_id)

    def typed(lines: str, *messages: str, arguments: tuple[str, ...] = ()) -> tuple[str, Speaker]:
        speaker = Speaker(untrained.tokenizer, *messages)
        monkeypatch.setattr(chat_module, "served_policy", lambda *_, **__: served(untrained, ROOMY, end_ids=end_ids))
        monkeypatch.setattr(ServedPolicy, "decoder", lambda _: speaker)
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert main(["chat", "anywhere", *arguments]) == 0
        return capsys.readouterr().out, speaker

    return typed


def test_a_call_runs_in_the_sandbox_and_the_next_message_reads_its_response(talk, environments, sandbox_url):
    environment = tiny_environment()
    shown, speaker = talk(
        "/question\n",
        CALL,
        "It is Amber Falcon.",
        arguments=("--environment", str(environments), "--sandbox", sandbox_url),
    )
    assert 'find_flat -> "Amber Falcon"' in shown
    assert "It is Amber Falcon.\n" in shown
    assert "<|im_end|>" not in shown
    said = [
        Message(role="user", content=environment.question),
        Message(
            role="assistant",
            content="",
            tool_calls=(ToolCall(id="c", name="find_flat", arguments={"owner": "Quartz Heron"}),),
        ),
        Message(role="tool", content='"Amber Falcon"', tool_call_id="c"),
    ]
    documents = [tool.document for tool in environment.tools]
    assert speaker.prompts[0] == render(said[:1], documents, add_generation_prompt=True)
    assert speaker.prompts[1] == render(said, documents, add_generation_prompt=True)


def test_without_an_environment_there_are_no_tools_and_a_second_message_reads_the_first(talk):
    shown, speaker = talk("hello\n\nand you?\n/new\nagain\n/quit\nnever\n", "Hi.", "Fine.", "Hi.")
    assert "0 tools" in shown
    assert speaker.prompts[1] == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n"
        "<|im_start|>user\nand you?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert speaker.prompts[2] == "<|im_start|>user\nagain<|im_end|>\n" + generation_prompt()


def test_a_message_that_is_cut_off_is_told_and_no_call_of_it_runs(talk, environments, sandbox_url):
    shown, speaker = talk(
        "find it\n/nonsense\n",
        CALL,
        arguments=("--environment", str(environments), "--sandbox", sandbox_url, "--max-tokens", "5"),
    )
    assert "(cut off after 5 tokens; --max-tokens allows more)" in shown
    assert "->" not in shown
    assert shown.count("/question asks") == 2
    assert len(speaker.prompts) == 1


def test_an_environment_that_is_not_there_is_refused_in_one_line(environments, capsys):
    assert main(["chat", "anywhere", "--environment", str(environments), "--number", "3"]) == 2
    assert "--number 3: " in capsys.readouterr().err


def test_after_eight_messages_with_calls_it_waits_for_the_user_and_each_begins_without_thoughts(
    talk, environments, sandbox_url
):
    shown, speaker = talk(
        "find it\ngo on\n",
        *[CALL] * 8,
        "Found.",
        arguments=("--environment", str(environments), "--sandbox", sandbox_url, "--no-thinking"),
    )
    assert shown.count("find_flat ->") == 8
    assert "(it has called tools in 8 messages in a row; say how to go on)" in shown
    begin = generation_prompt(enable_thinking=False)
    assert all(prompt.endswith(begin) for prompt in speaker.prompts)
    assert "</tool_response><|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n" in speaker.prompts[-1]


def test_ctrl_c_ends_a_talk_that_waits_for_the_user(untrained, tmp_path):
    save_policy(untrained, tmp_path / "policy")
    command = [sys.executable, "-m", "astra_jax.cli", "chat", str(tmp_path / "policy")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as talk:
        shown = b""
        assert talk.stdout
        assert talk.stderr
        while not shown.endswith(b"you> "):
            more = talk.stdout.read(1)
            assert more, talk.stderr.read()
            shown += more
        time.sleep(1)  # it waits now
        talk.send_signal(signal.SIGINT)
        assert talk.wait(timeout=20) == 130  # after 30 s any command is ended
        assert talk.stderr.read().decode().splitlines()[-1].startswith("astra: ended on Ctrl-C")
