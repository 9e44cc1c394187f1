"""A stand-in of ACEBench's two programs, written by hand; it sends, reads and writes as they do: as `generate.py` if it
has that name, else as `eval_main.py`.

In a conversation the user speaks first (in multi-turn), the agent answers until it says "finish conversation". Text
in brackets is evaluated as Python, as the official code does; text that is no Python ends it. A case is right if the
agent executed one message.
"""

import json
import os
import re
import sys
from pathlib import Path

from tests.astra_jax.benchmarks.asking import ask, option

LANGUAGE, MODEL = option("--language"), option("--model")


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def say(who, messages):
    prefix = {"agent": "GPT_AGENT", "user": "GPT"}[who]
    model = MODEL if who == "agent" else option("--user-model")
    body = {"messages": messages, "model": model, "temperature": 0.001, "max_tokens": 1000, "top_p": 1}
    reply = ask(os.environ[f"{prefix}_BASE_URL"], os.environ[f"{prefix}_API_KEY"], body)
    return reply["choices"][0]["message"]["content"]


def converse(case):
    history, process, number = f"user:{case['question']}\n", [], 0
    if "multi_turn" in case["id"]:
        history = "user:" + say("user", [{"role": "system", "content": case["question"]}]) + "\n"
    while number < int(option("--max-dialog-turns")):
        number += 1
        said = say("agent", [{"role": "system", "content": case["id"]}, {"role": "user", "content": history}])
        history += f"agent:{said}\n"
        if "finish conversation" in said:
            break
        if re.search(r"\[.*\]", said):
            process.append(said)
            history += f"execution:{eval(said)}\n"
    folder = Path(f"data_all/data_{LANGUAGE}/dialogue_history/{case['id'][6:16]}/{MODEL}")
    folder.mkdir(parents=True)
    (folder / "0_dialogue_history.txt").write_text("".join(f"| {n}   | said |\n" for n in range(number + 1)))
    return {"id": case["id"], "result": [], "process": process}


def generate():
    import google.generativeai  # noqa: F401  # as the official code does for every model
    from vllm import LLM, SamplingParams  # noqa: F401

    for category in ("agent_multi_step", "agent_multi_turn"):
        path = Path(f"result_all/result_{LANGUAGE}/{MODEL}/data_{category}_result.json")
        for case in lines(f"data_all/data_{LANGUAGE}/data_{category}.json"):
            with path.open("a") as file:
                file.write(json.dumps(converse(case)) + "\n")
        path.read_text()  # it sorts both


def evaluate():
    category = option("--category")
    results = lines(f"result_all/result_{LANGUAGE}/{MODEL}/data_{category}_result.json")
    answers = lines(f"data_all/data_{LANGUAGE}/possible_answer/data_{category}.json")
    assert len(results) == len(answers) == 1
    is_right = len(results[0]["process"]) == 1
    score = [{"end_to_end_accuracy": float(is_right), "process_accuracy": 1.0 if is_right else 0.25}]
    score[0] |= {"correct_count": int(is_right), "total_count": 1}
    if not is_right:
        score.append({"id": 0, "valid": False, "error": ["no"], "error_type": "class attributes wrong"})
    path = Path(f"score_all/score_{LANGUAGE}/{MODEL}/data_{category}_score.json")
    path.write_text("\n".join(map(json.dumps, score)))  # without a line break at its end


if __name__ == "__main__":
    {"generate.py": generate, "eval_main.py": evaluate}[Path(sys.argv[0]).name]()
