"""A stand-in of τ²-bench's program, written by hand; it sends and writes as v0.2.0 does. In each conversation the
agent greets, the user speaks, the agent calls a tool once and answers.

As the harness does it asks before it goes on with a file, sends the history without `content` where there are calls,
and ends the whole run at an answer without a word and without a call. A conversation succeeds where the agent says
"done".
"""

import json
import os
from pathlib import Path

from tests.astra_jax.benchmarks.asking import ask, option


def speak(who, messages, tools=None):
    arguments = json.loads(option(f"--{who}-llm-args"))
    model = option(f"--{who}-llm").removeprefix("openai/")
    body = {"messages": messages, "model": model, "temperature": arguments["temperature"], "seed": 7}
    if tools:
        body |= {"tools": tools, "tool_choice": "auto"}
    document = ask(arguments["api_base"], arguments["api_key"], body)
    choice, usage = document["choices"][0], document["usage"]
    said = choice["message"]
    if not (said["content"] or "").strip() and not said.get("tool_calls"):
        raise ValueError("AssistantMessage must have either content or tool_calls")
    calls = [
        {"id": each["id"], "name": each["function"]["name"], "arguments": json.loads(each["function"]["arguments"])}
        for each in said.get("tool_calls") or ()
    ]
    return {
        "role": "assistant" if who == "agent" else "user",
        "content": said["content"],
        "tool_calls": calls or None,
        "usage": {"completion_tokens": usage["completion_tokens"], "prompt_tokens": usage["prompt_tokens"]},
        "raw_data": choice,
    }


def converse(task, trial):
    messages = [{"role": "assistant", "content": "Hi! How can I help you today?", "tool_calls": None}]
    messages.append(speak("user", [{"role": "system", "content": f"{task} trial {trial}"}]))
    history = [{"role": "system", "content": f"policy {task} trial {trial}"}]
    history.append({"role": "user", "content": messages[-1]["content"]})
    tools = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}]
    messages.append(speak("agent", history, tools))
    for call in messages[-1]["tool_calls"] or ():
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        calls = [{"id": call["id"], "name": call["name"], "type": "function", "function": function}]
        history.append({"role": "assistant", "tool_calls": calls})
        history.append({"role": "tool", "content": "{}", "tool_call_id": call["id"]})
        messages.append({"role": "tool", "id": call["id"], "content": "{}", "requestor": "assistant"})
        messages.append(speak("agent", history, tools))
    reward = {"reward": float("done" in (messages[-1]["content"] or ""))}
    ended = {"duration": 1.5, "termination_reason": "user_stop", "reward_info": reward}
    return {"task_id": task, "trial": trial, "messages": messages, **ended}


def main():
    domain = option("--domain")
    path = Path(os.environ["TAU2_DATA_DIR"]) / "simulations" / f"{option('--save-to')}.json"
    results = {"info": {}, "tasks": [], "simulations": []}
    if path.exists():
        assert input("Do you want to resume the run? (y/n)") == "y"
        results = json.loads(path.read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(each["task_id"], each["trial"]) for each in results["simulations"]}
    assert (Path(os.environ["TAU2_DATA_DIR"]) / "tau2" / "tasks.json").exists()
    for trial in range(int(option("--num-trials"))):
        for number in range(int(option("--num-tasks"))):
            task = f"{domain}_{number}"
            if (task, trial) not in done:
                results["simulations"].append(converse(task, trial))
                path.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
