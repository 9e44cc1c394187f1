"""A stand-in of BFCL's program, written by hand; its command line reads and writes as BFCL's does: two turns a case,
one request each.

A case passes whose first call is `cd`.
"""

import json
import os
import sys
from pathlib import Path

from tests.astra_jax.benchmarks.asking import ask, option

ROOT = Path(os.environ.get("BFCL_PROJECT_ROOT", "."))


def results(category):
    folder = ROOT / option("--result-dir") / option("--model").replace("/", "_") / "multi_turn"
    return folder / f"BFCL_v4_{category}_result.json"


def answer(messages):
    tools = [{"type": "function", "function": {"name": "cd", "parameters": {}, "response": {}}}]
    body = {"messages": messages, "model": option("--model"), "store": False, "tools": tools}
    body["temperature"] = float(option("--temperature"))
    return ask(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], body)


def run(case):
    messages, lines = [], {"result": [], "input_token_count": [], "output_token_count": [], "latency": []}
    try:
        for turn in range(2):
            messages.append({"role": "user", "content": f"{case} turn {turn}"})
            document = answer(messages)
            message, usage = document["choices"][0]["message"], document["usage"]
            calls = [
                {each["function"]["name"]: each["function"]["arguments"]} for each in message.get("tool_calls") or ()
            ]
            lines["result"].append([calls or message["content"]])
            lines["input_token_count"].append([usage["prompt_tokens"]])
            lines["output_token_count"].append([usage["completion_tokens"]])
            lines["latency"].append([0.5])
    except OSError as error:
        return {"id": case, "result": f"Error during inference: {error}"}
    return {"id": case, **lines}


def generate():
    for category, cases in json.loads((ROOT / "test_case_ids_to_generate.json").read_text()).items():
        path = results(category)
        path.parent.mkdir(parents=True, exist_ok=True)
        done = [json.loads(line)["id"] for line in path.read_text().splitlines()] if path.exists() else []
        for case in cases:
            if case in done:
                continue
            with path.open("a") as file:
                file.write(json.dumps(run(case)) + "\n")


def calls_cd(result):
    first = result[0][0] if isinstance(result, list) else ""
    return isinstance(first, list) and "cd" in first[0]


def evaluate():
    for category in option("--test-category").split(","):
        lines = [json.loads(line) for line in results(category).read_text().splitlines()]
        wrong = [line for line in lines if not calls_cd(line["result"])]
        right = len(lines) - len(wrong)
        path = ROOT / option("--score-dir") / f"BFCL_v4_{category}_score.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {"accuracy": right / len(lines), "correct_count": right, "total_count": len(lines)}
        failed = [{"id": line["id"], "valid": False, "error": {"error_type": "stand-in"}} for line in wrong]
        path.write_text("".join(json.dumps(line) + "\n" for line in [header, *failed]))


if __name__ == "__main__":
    {"generate": generate, "evaluate": evaluate}[sys.argv[1]]()
