"""A stand-in of inspect's program, written by hand from what its command line reads and sends: in each conversation the
user speaks, the agent answers, and the user ends it, or does not.

A conversation is right where the agent says "done". Whatever a request fails by is swallowed, as it is there. Its log
is JSON already, so that the stand-in of Python (`stand_in_inspect_python.py`) has nothing to condense.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from fnmatch import fnmatch
from pathlib import Path

TASKS = {"retail": ["retail_0", "retail_1"], "telecom": ["telecom_0", "telecom_1"]}
ROUNDS = 2


def option(name, after=0):
    return sys.argv[sys.argv.index(name, after) + 1]


def settings_of_task():
    given = [sys.argv[number + 1] for number, each in enumerate(sys.argv) if each == "-T"]
    return dict(each.split("=") for each in given)


def ask(role, text):
    spec = option("--model") if role is None else json.loads(option("--model-role").removeprefix("user="))["model"]
    _, service, name = spec.split("/")
    body = {"messages": [{"role": "user", "content": text}], "model": name, "temperature": 0.0}
    key = os.environ[f"{service.upper()}_API_KEY"]
    headers = {"Authorization": f"Bearer {key}"}
    url = os.environ[f"{service.upper()}_BASE_URL"] + "/chat/completions"
    event = {"event": "model", "role": role, "error": None, "output": {"choices": [], "usage": None}}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
            reply = json.loads(response.read())
    except urllib.error.HTTPError as error:
        code = json.loads(error.read())["error"].get("code")
        if code == "context_length_exceeded":  # it takes the message for an answer
            choice = {"message": {"content": "too long", "tool_calls": None}, "stop_reason": "model_length"}
            return {**event, "output": {"choices": [choice], "usage": None}}
        return {**event, "error": f"BadRequestError({error})"}
    said, usage = reply["choices"][0]["message"], reply["usage"]
    calls = [{"function": each["function"]["name"]} for each in said.get("tool_calls") or ()]
    choice = {
        "message": {"content": said["content"] or "", "tool_calls": calls or None},
        "stop_reason": {"length": "max_tokens"}.get(reply["choices"][0]["finish_reason"], "stop"),
    }
    spent = {
        "input_tokens": usage["prompt_tokens"] - 1,
        "input_tokens_cache_read": 1,
        "output_tokens": usage["completion_tokens"],
    }
    return {**event, "output": {"choices": [choice], "usage": spent}}


def text_of(event):
    return "".join(choice["message"]["content"] for choice in event["output"]["choices"])


def converse(task, epoch):
    events = []
    for _ in range(min(ROUNDS, int(settings_of_task()["message_limit"]))):
        events.append(ask("user", f"{task} epoch {epoch}"))
        if "###STOP###" in text_of(events[-1]):
            break
        events.append(ask(None, f"{task} epoch {epoch}"))
    said = " ".join(text_of(event) for event in events if event["role"] is None)
    score = {"value": "C" if "done" in said else "I", "explanation": "the database does not match"}
    return {
        "id": task,
        "epoch": epoch,
        "scores": {"a_scorer": score},
        "error": None,
        "total_time": 1.5,
        "events": [{"event": "span_begin"}, *events],
    }


def main():
    domain = sys.argv[2].removeprefix("inspect_evals/tau2_")
    assert settings_of_task()["shuffle"] == "false"
    patterns = option("--sample-id").split(",")
    tasks = [task for task in TASKS[domain] if any(fnmatch(task, pattern) for pattern in patterns)]
    left_out = Path(__file__).parents[1] / "left_out"
    samples = [
        converse(task, epoch)
        for epoch in range(1, int(option("--epochs")) + 1)
        for task in tasks
        if not (left_out.exists() and left_out.read_text() == task)
    ]
    failed = Path(__file__).parents[1] / "failed"
    log = {"status": "success", "error": None, "samples": samples}
    if failed.exists():
        log = {"status": "error", "error": {"message": "no such file\nwhatever"}, "samples": []}
    folder = Path(option("--log-dir"))
    folder.mkdir()
    (folder / "log.eval").write_text(json.dumps(log))


if __name__ == "__main__":
    main()
