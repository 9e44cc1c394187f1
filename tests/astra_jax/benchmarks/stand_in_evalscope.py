"""A stand-in of evalscope's program, written by hand from what its command line reads and writes: one request a case.

Of BFCL it scores 1 where the answer calls `cd`, of AIME where it says the right number in a box. What lies in a file
`left_out` in its environment is a case that it does not run.
"""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def ask(content):
    body = {"messages": [{"role": "user", "content": content}], "model": option("--model"), "temperature": 0.001}
    request = urllib.request.Request(option("--api-url") + "/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read())


def cases(dataset, arguments):
    if dataset == "bfcl_v4":
        for subset in arguments["subset_list"]:
            for number in range(int(option("--limit"))):
                yield subset, number, f"{subset}_{number}", "cd"
    else:
        lines = (Path(arguments["dataset_id"]) / "default_test.jsonl").read_text().splitlines()
        for number, line in enumerate(lines[: int(option("--limit"))]):
            problem = json.loads(line)
            yield "default", number, problem["problem"], rf"\boxed{{{problem['answer']}}}"


def review(dataset, number, repeat, text, right):
    messages = [{"role": "user", "content": text}]
    score = {"status": "success", "metadata": {"error": "stand-in"}}
    try:
        reply = ask(text)
        message, usage = reply["choices"][0]["message"], reply["usage"]
        said = json.dumps(message)
        spent = {"latency": 0.5, "input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        calls = message.get("tool_calls") and [{"function": each["function"]} for each in message["tool_calls"]]
        content = message["content"] or ""
        messages.append({"role": "assistant", "content": content, "tool_calls": calls, "perf_metrics": spent})
        names = [each["function"]["name"] for each in calls or ()]
        score |= {"value": {"acc": float(right in names or right in content)}, "extracted_prediction": said}
    except urllib.error.HTTPError as error:
        score |= {"value": {"acc": 0.0}, "extracted_prediction": json.dumps({"error": str(error)})}
    about = {"id": text} if dataset == "bfcl_v4" else {}
    of_case = {"group_id": number, "generation_index": repeat, "sample_metadata": about}
    return {"index": 0, "messages": messages, "sample_score": {"score": score, **of_case}}


def main():
    dataset, repeats = option("--datasets"), int(option("--repeats"))
    left_out = Path(__file__).parents[1] / "left_out"
    folder = Path(option("--work-dir")) / "reviews" / option("--model")
    folder.mkdir(parents=True)
    for subset, number, text, right in cases(dataset, json.loads(option("--dataset-args"))[dataset]):
        if left_out.exists() and left_out.read_text() == text:
            continue
        with (folder / f"{dataset}_{subset}.jsonl").open("a") as file:
            for repeat in reversed(range(repeats)):  # as they end
                file.write(json.dumps(review(dataset, number, repeat, text, right)) + "\n")


if __name__ == "__main__":
    main()
