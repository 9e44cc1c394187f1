"""Synthesis with the embedded teacher, with a slow endpoint and with a sloppy one: one JSON line.

python scripts/bench_synthesis.py environments [--config configs/paper_environments.toml] [--count 6596]
python scripts/bench_synthesis.py trajectories [--config configs/tiny_trajectories.toml] [--count 10000]
python scripts/bench_synthesis.py endpoint [--count 32768]
python scripts/bench_synthesis.py sloppy [--count 200] [--share 0.2]
python scripts/bench_synthesis.py figures --out DIR [--tokenizer FOLDER]

environments   seconds and memory from knowledge to records with all proofs, and the seconds in which
               `astra records verify` replays every promise. No language model is asked, so the time is the
               machinery's. Memory is the whole process tree's
trajectories   the same, from tool documents to records; `astra records stats` has the share of failed calls
endpoint       different questions to an endpoint that takes half a second for each, at concurrency 256: the share
               of the throughput that the latency alone would allow, with the start, when concurrency grows
sloppy         both tracks on a real HTTP server that answers as the embedded teacher would and spoils a share of
               its replies, in one of twelve ways (`WAYS`), and an agent's turns in twelve of their own
               (`spoiled_turns`). Printed: attempts, attempts lost to form (`unusable reply`), the same without
               spoiling, uses of each way, replies read leniently, questions asked again
figures        of the environments in DIR: words of questions, shapes of the own tools' code, gold replies that are
               records, how often a gold call sets an optional parameter, tokens of prompts; and, among tools that
               share a required parameter, how often the tool nearest to the question is an own one: by shared
               words, and by the encoder of the extra `embeddings`
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import io
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

from astra_jax.chat.format import render
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.evaluate.tool_style import rivals
from astra_jax.recipes.stages import PeakMemory
from sandbox.local import local_sandbox
from synthesis.embeddings import as_dense, installed_encoder, vectors_of
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.prompts.judges import JudgeTogether
from synthesis.prompts.tasks import ScoreTask
from synthesis.record_io import RecordSource
from synthesis.records import Environment, Message
from synthesis.stage import StageReport
from synthesis.teacher.calls import REPAIR
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.openai import OpenAITeacher
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories

ROOT = Path(__file__).parents[1]
LATENCY_SECONDS, CONCURRENCY = 0.5, 256
SCORES = ("score", "clarity", "realism", "tool_necessity", "dependency_consistency", "atomicity",
          "sequential_rationality", "task_completeness")  # fmt: skip
LOST = "unusable reply"


def astra(*words: str) -> str:
    """Run one command of this tree; return its output."""
    command = [sys.executable, "-m", "astra_jax.cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def synthesis(track: str, options: argparse.Namespace) -> dict[str, Any]:
    """Synthesise records and verify them."""
    with TemporaryDirectory() as folder, PeakMemory() as memory:
        out = options.out or Path(folder) / track
        settings = [f"count={options.count}", f"seed={options.seed}", f"out={json.dumps(str(out))}", *options.overrides]
        report = json.loads(astra("synthesize", track, str(options.config), *settings, "--json").splitlines()[-1])
        peak_rss_bytes = memory.peak_bytes
        started = time.monotonic()
        verified = astra("records", "verify", str(out)).splitlines()[-1]
        verify_seconds = time.monotonic() - started
    return {
        "work": f"{options.count} {track} of {options.config.name}, seed {options.seed}",
        "ours": {
            "median_seconds": report["seconds"],
            "records_per_second": round(report["kept"] / report["seconds"], 2),
            "verify_seconds": round(verify_seconds, 1),
            "peak_rss_bytes": peak_rss_bytes,
        },
        "kept": report["kept"],
        "rejected": report["rejected"],
        "verified": verified,
    }


def endpoint(options: argparse.Namespace) -> dict[str, Any]:
    """Start the slow endpoint in a process of its own, and ask it."""
    script = ROOT / "tests" / "synthesis" / "teacher" / "mock_endpoint.py"
    command = [sys.executable, str(script), "0", str(LATENCY_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            return asyncio.run(ask_endpoint(server.stdout.readline().strip(), options.count))
        finally:
            server.kill()


async def ask_endpoint(url: str, num_calls: int) -> dict[str, Any]:
    """Ask `num_calls` different questions with as many workers as the concurrency allows."""
    teacher = OpenAITeacher(
        OpenAITeacherConfig(model="mock", base_url=url, api_key_env="BENCH_KEY", max_concurrency=CONCURRENCY)
    )
    questions = (
        ScoreTask(text=f"Task {number}", language="en", slots={}, hidden_slots=(), tools=())
        for number in range(num_calls)
    )

    async def worker() -> None:
        for question in questions:
            await teacher.ask(question, seed=0)

    started, started_cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - started_cpu
    await teacher.close()
    return {
        "work": f"{num_calls} calls, {LATENCY_SECONDS} s each, concurrency {CONCURRENCY}",
        "ours": {"median_seconds": round(seconds, 2), "cpu_seconds": round(cpu_seconds, 2)},
        "share_of_ideal": round(num_calls * LATENCY_SECONDS / CONCURRENCY / seconds, 4),
    }


def trailing_commas(value: Any) -> str:
    """Write JSON with a comma after the last item of everything."""
    if isinstance(value, dict):
        return "{" + "".join(f"{json.dumps(key)}: {trailing_commas(item)}, " for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"{trailing_commas(item)}, " for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def null_for_empty(reply: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Write null where a field has its empty default; None where no field has."""
    fields = schema.get("properties", {})
    empty = [name for name, value in reply.items() if value in ("", [], {}) and "default" in fields.get(name, {})]
    return json.dumps({**reply, **dict.fromkeys(empty)}) if empty else None


def objects_as_texts(reply: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Write objects and lists inside as texts that hold JSON; None where there are none that must be one."""
    typed = {name for name, field in schema.get("properties", {}).items() if field.get("type") in ("object", "array")}
    inner = {name: json.dumps(reply[name]) for name in typed if reply.get(name)}
    return json.dumps({**reply, **inner}) if inner else None


def another_scale(reply: Any, schema: dict[str, Any]) -> str | None:
    """Write scores from 0 to 10, wherever they stand; None where there are none above 0."""

    def scaled(value: Any) -> Any:
        if isinstance(value, list):
            return [scaled(part) for part in value]
        if isinstance(value, dict):
            return {name: part * 10 if name in SCORES else scaled(part) for name, part in value.items()}
        return value

    return json.dumps(scaled(reply)) if scaled(reply) != reply else None


def raw_newlines(reply: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Write newlines of texts as they are; None where no text has one."""
    text = json.dumps(reply, ensure_ascii=False)
    return text.replace("\\n", "\n") if "\\n" in text and "\\\\n" not in text else None


def fenced(reply: dict[str, Any], schema: dict[str, Any]) -> str:
    """Write a fence, with prose around it."""
    return f"As you asked:\n\n```json\n{json.dumps(reply, indent=2)}\n```\nTell me if it should be changed."


def after_thoughts(reply: dict[str, Any], schema: dict[str, Any]) -> str:
    """Write thoughts before it, with a draft in them."""
    return f"<think>\nPerhaps {json.dumps(reply)}? or {{}}. Yes.\n</think>\n\n{json.dumps(reply)}"


Way = Callable[[dict[str, Any], dict[str, Any]], str | None]
WAYS: dict[str, Way] = {
    "prose": lambda reply, _: f"Here is it {{as JSON}}: {json.dumps(reply)}\nI hope that this helps!",
    "fence": fenced,
    "thoughts": after_thoughts,
    "trailing commas": lambda reply, _: trailing_commas(reply),
    "raw newlines": raw_newlines,
    "wrapper": lambda reply, _: json.dumps({"response": reply}),
    "keys too many": lambda reply, _: json.dumps({"thoughts": "Let me see.", **reply, "confidence": 0.9}),
    "null for empty": null_for_empty,
    "objects as texts": objects_as_texts,
    "another scale": another_scale,
    "cut off": lambda reply, _: json.dumps(reply)[: len(json.dumps(reply)) * 2 // 3],
    "python": lambda reply, _: repr(reply),
}
"""Each writes a reply, whose schema it is given, badly; None where it does not fit the reply."""


def as_message(turn: dict[str, Any], write: Callable[[dict[str, Any]], Any] = json.dumps) -> dict[str, Any]:
    """Write the agent's turn as endpoints give one, with its arguments as `write` has them."""
    calls = [
        {"id": f"x{number}", "type": "function", "function": {**call, "arguments": write(call["arguments"])}}
        for number, call in enumerate(turn["tool_calls"])
    ]
    return {
        "role": "assistant",
        "content": turn["content"],
        "reasoning_content": turn["reasoning"],
        "tool_calls": calls,
    }


def spoiled_turns(turn: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Write the agent's turn badly, in every way of the twelve that fits it."""
    good = as_message(turn)
    thoughts, blocks = (
        turn["reasoning"],
        [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in turn["tool_calls"]],
    )
    ways = {
        "turn: thoughts in the text": {
            **good,
            "reasoning_content": None,
            "content": f"<think>{thoughts}</think>{turn['content']}",
        },
        "turn: thoughts without a start": {
            **good,
            "reasoning_content": None,
            "content": f"{thoughts}</think>{turn['content']}",
        },
        "turn: keys too many": {**good, "annotations": [], "audio": None, "provider": {"id": 1}},
        "turn: empty": {"role": "assistant", "content": None},
    }
    if turn["tool_calls"]:
        ways |= {
            "turn: trailing commas": as_message(turn, trailing_commas),
            "turn: python": as_message(turn, repr),
            "turn: fence": as_message(turn, lambda arguments: f"```json\n{json.dumps(arguments)}\n```"),
            "turn: objects": as_message(turn, lambda arguments: arguments),
            "turn: text of text": as_message(turn, lambda arguments: json.dumps(json.dumps(arguments))),
            "turn: cut off": as_message(turn, lambda arguments: json.dumps(arguments)[:-1]),
            "turn: null": {**good, "content": None, "refusal": None},
            "turn: calls in the text": {**good, "tool_calls": None, "content": "".join(blocks)},
        }
    return ways


class Sloppy:
    """The endpoint: it gives the answers of the embedded teacher that it was told, a share of them spoiled."""

    def __init__(self, share: float, seed: int):
        self.replies: dict[str, Any] = {}
        self.ways: Counter[str] = Counter()
        self.calls = 0
        self._share, self._rng = share, random.Random(seed)

    async def complete(self, request: HttpRequest) -> JSONResponse:
        """Answer one call; a call that quotes a fault is another try at the same question."""
        body = await request.json()
        self.calls += 1
        seed, messages = body["seed"], body["messages"]
        ends = range(len(messages), 0, -1)
        # A turn that could not be read is drawn anew, with the next seed.
        known = (asked(messages[:end], seed - drawn) for drawn in range(3) for end in ends)
        reply = self.replies[next(key for key in known if key in self.replies)]
        is_turn = "response_format" not in body
        message = as_message(reply) if is_turn else {"role": "assistant", "content": json.dumps(reply)}
        if self._rng.random() < self._share:
            if is_turn:
                spoiled = spoiled_turns(reply)
            else:
                schema = body["response_format"]["json_schema"]["schema"]
                written = {name: way(reply, schema) for name, way in WAYS.items()}
                spoiled = {
                    name: {"role": "assistant", "content": text} for name, text in written.items() if text is not None
                }
            name = self._rng.choice(sorted(spoiled))
            self.ways[name] += 1
            message = spoiled[name]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10}})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free port of this machine; yield the address."""
        app = Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await serving


def asked(messages: list[Any], seed: int) -> str:
    """Name a question, without the system message, to which the schema is added, and without a repair."""
    texts = [{**each, "content": (each["content"] or "").partition(REPAIR)[0]} for each in messages[1:]]
    return json.dumps([texts, seed], sort_keys=True)


class ToldTeacher(OpenAITeacher):
    """Tells the endpoint in this process the embedded teacher's answer to each question."""

    endpoint: Sloppy

    async def _reply(self, request: Any, seed: int, **options: Any) -> Any:
        """Tell, then ask."""
        if isinstance(request, JudgeTogether):
            said = [await ProceduralTeacher().ask(judge, seed=seed) for judge in request.judges]
            numbered = [
                {"criterion": number, "reason": judgement.reason, "score": judgement.score}
                for number, judgement in enumerate(said, 1)
            ]
            reply: Any = {"judgements": numbered}
        else:
            reply = (await ProceduralTeacher().ask(request, seed=seed)).model_dump(mode="json")
        self.endpoint.replies[asked(request.messages(), seed % 2**31)] = reply
        return await super()._reply(request, seed, **options)


# The names of the embedded teacher's worlds begin as they like; a language model's are told how.
WriteQAInstance.check = lambda request, reply: None  # type: ignore[assignment]


async def run(track: Callable[[OpenAITeacher], Awaitable[StageReport]], share: float, seed: int) -> dict[str, Any]:
    """Run a track on the endpoint, and count."""
    endpoint = Sloppy(share, seed)
    async with endpoint.serving() as url:
        teacher = ToldTeacher(OpenAITeacherConfig(model="sloppy", base_url=url, api_key_env="BENCH_KEY"))
        teacher.endpoint = endpoint
        report = await track(teacher)
        await teacher.close()
    costs = teacher.ledger.questions.values()
    mended = Counter[str]()
    for cost in costs:
        mended.update(getattr(cost, "mended", {}))
    return {
        "attempts": report.read,
        "lost_to_form": report.rejected[LOST],
        "share_lost": round(report.rejected[LOST] / report.read, 4),
        "kept": report.kept,
        "calls": endpoint.calls,
        "ways": dict(sorted(endpoint.ways.items())),
        "read_leniently": dict(sorted(mended.items())),
        "asked_again": sum(cost.repairs for cost in costs),
        "bad_replies": sum(cost.bad_replies for cost in costs),
    }


async def both_tracks(count: int, share: float, seed: int, sandbox_url: str) -> dict[str, Any]:
    """Run both tracks, spoiled and as they should be."""

    async def trajectories(out: Path, teacher: OpenAITeacher) -> StageReport:
        config = TrajectoriesConfig(count=count, out=out, seed=seed, follow_up_share=0.3)
        return await synthesize_trajectories(config, teacher, progress=io.StringIO())

    async def environments(out: Path, teacher: OpenAITeacher) -> StageReport:
        config = EnvironmentsConfig(count=count, out=out, seed=seed)
        return await synthesize_environments(config, teacher, sandbox_url)

    line: dict[str, Any] = {"work": "sloppy teacher", "count": count, "share_spoiled": share}
    with TemporaryDirectory() as folder:
        for name, track in (("trajectories", trajectories), ("environments", environments)):
            line[name] = await run(partial(track, Path(folder) / name), share, seed)
            unspoiled = await run(partial(track, Path(folder) / f"{name}_unspoiled"), 0.0, seed)
            line[name]["lost_unspoiled"] = unspoiled["lost_to_form"]
    return line


Near = Callable[[Environment], dict[str, float]]
"""Nearness of an environment's tools to its question, by the tools' names."""


def shape(source: str) -> str:
    """Return the form of a tool's code: its syntax tree without names and constants."""
    return re.sub(r"(id|arg|attr|name|value)=('[^']*'|[\d.]+|None|True|False)", r"\1", ast.dump(ast.parse(source)))


def shared_words(environment: Environment) -> dict[str, float]:
    """Count the beginnings of words, or the pairs of Chinese characters, that a document shares with the question."""

    def parts(text: str) -> set[str]:
        if environment.language == "zh":
            return set(re.findall("(?=([\u4e00-\u9fff]{2}))", text))
        return {word[:5] for word in re.findall("[a-z]{4,}", text.lower().replace("_", " "))}

    asked = parts(environment.question)
    documents = [tool.document for tool in environment.all_tools]
    return {each.name: float(len(asked & parts(f"{each.name} {each.description}"))) for each in documents}


def by_meaning(environments: Sequence[Environment]) -> Near:
    """Return the cosines of the encoder's vectors of questions and descriptions."""
    texts = {tool.document.description for each in environments for tool in each.all_tools}
    listed = sorted(texts | {each.question for each in environments})
    vectors = dict(zip(listed, as_dense(vectors_of(listed, installed_encoder() or "lexical")), strict=True))

    def near(environment: Environment) -> dict[str, float]:
        asked = vectors[environment.question]
        tools = [tool.document for tool in environment.all_tools]
        return {each.name: float(vectors[each.description] @ asked) for each in tools}

    return near


def own_tools_found(environments: Sequence[Environment], near: Near) -> dict[str, float]:
    """Return the share of groups of rivals whose nearest tool is own, and the share by chance; a tie counts partly."""
    found, chance = [], []
    for environment in environments:
        nearness, documents = near(environment), [tool.document for tool in environment.all_tools]
        own = {tool.document.name for tool in environment.tools}
        for document in (each for each in documents if each.name in own):
            names = [each.name for each in rivals(document, documents)]
            if own.issuperset(names):
                continue
            best = max(nearness[name] for name in names)
            nearest = [name for name in names if nearness[name] == best]
            found.append(sum(name in own for name in nearest) / len(nearest))
            chance.append(sum(name in own for name in names) / len(names))
    return {"found": round(fmean(found), 3), "chance": round(fmean(chance), 3), "groups": len(found)}


def figures_of(directory: Path, folder: Path | None) -> dict[str, Any]:
    """Return figures of a set that `astra records stats` does not print; `folder` holds a tokenizer, or is None."""
    environments = list(RecordSource(directory, Environment))
    tools = [tool for each in environments for tool in each.tools]
    asked = [task for each in environments for task in each.sub_questions if task.call is not None]
    taken, setting = Counter[str](), Counter[str]()
    for environment in environments:
        documents = {tool.document.name: tool.document for tool in environment.tools}
        for call in (task.call for task in environment.sub_questions if task.call is not None):
            optional = documents[call.name].parameters["properties"].keys() - set(documents[call.name].required)
            taken.update(optional)
            setting.update(optional & call.arguments.keys())
    words = [len(each.question.split()) for each in environments if each.language == "en"]
    stateless = [each for each in environments if not each.is_stateful]
    languages = sorted({each.language for each in stateless})
    counted: dict[str, Any] = {
        "environments": len(environments),
        "ends": Counter(each.expectation for each in environments),
        "stateful": len(environments) - len(stateless),
        "english_words": {"mean": round(fmean(words), 1), "most": max(words)} if words else None,
        "tools": round(fmean(len(each.all_tools) for each in environments), 1),
        "shapes_of_code": {"tools": len(tools[:900]), "shapes": len({shape(each.source) for each in tools[:900]})},
        "replies_that_are_records": round(fmean(bool(task.path) for task in asked), 3),
        "optional_set": {name: round(setting[name] / count, 2) for name, count in sorted(taken.items())},
    }
    ways = {"words": shared_words, "meaning": by_meaning(environments) if installed_encoder() else None}
    counted["own_tools_found"] = {
        way: {of: own_tools_found([each for each in stateless if each.language == of], near) for of in languages}
        for way, near in ways.items()
        if near is not None
    }
    if folder is not None:
        tokenizer = Tokenizer.load(folder)
        lengths = []
        for environment in environments:
            asked_for = [Message(role="user", content=environment.question)]
            text = render(asked_for, [tool.document for tool in environment.all_tools])
            lengths.append(len(tokenizer.encode(text)))
        counted["prompt_tokens"] = {"least": min(lengths), "median": median(lengths), "most": max(lengths)}
    return counted


def main() -> None:
    """Read the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = {"environments": 6596, "trajectories": 10_000, "endpoint": 32_768, "sloppy": 200, "figures": 0}
    parser.add_argument("mode", choices=list(counts))
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="of the config of environments or trajectories"
    )
    parser.add_argument("--config", type=Path, help="of environments or trajectories")
    parser.add_argument("--count", type=int, help=f"default: {counts}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep the records of environments or trajectories here")
    parser.add_argument("--tokenizer", type=Path, help="folder of a HuggingFace tokenizer, to count tokens of prompts")
    parser.add_argument("--share", type=float, default=0.2, help="share of replies that the sloppy endpoint spoils")
    options = parser.parse_args()
    options.count = options.count or counts[options.mode]
    os.environ["BENCH_KEY"] = "none"
    if options.mode in ("environments", "trajectories"):
        default = {"environments": "paper_environments.toml", "trajectories": "tiny_trajectories.toml"}[options.mode]
        options.config = options.config or ROOT / "configs" / default
        line = synthesis(options.mode, options)
    elif options.mode == "figures":
        line = figures_of(options.out, options.tokenizer)
    elif options.mode == "endpoint":
        line = endpoint(options)
    else:
        with local_sandbox() as url:
            line = asyncio.run(both_tracks(options.count, options.share, options.seed, url))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
