"""The learner, from records to HuggingFace weights, and the `astra` command; in reading order.

errors                The errors of the learner.
config_keys           The keys of a config: each with its default, and its explanation.
config                Configs: a TOML file and `key=value` overrides, read into a pydantic class.
named_functions       Functions that a config names: built-in ones, and those of the user as `MODULE:FUNCTION`.
user_cache            The folder of caches, of compiled programs and of benchmarks' environments.
metrics_file          The file `metrics.jsonl` of a run: one JSON object per step.
transformers_library  HuggingFace's `transformers`, without torch: it reads and writes configs and templates.
chat/                 Qwen3's chat format, byte for byte.
model/                Dense language models in JAX: Qwen3, Qwen2.5, Llama (SmolLM2).
mesh/                 Hosts and devices of a run, and the places of arrays on them.
checkpoints/          Weights and training states on disk.
engine/               The decode engine: token ids in, token ids and their log-probs out.
episodes/             A policy in environments.
training/             One training run: everything that SFT and RL share around their steps.
sft/                  Supervised fine-tuning.
rl/                   Multi-turn GRPO.
evaluate/             Evaluation of a policy: in held-out environments, with intervals, and on logged episodes.
benchmarks/           Public benchmarks: their official harnesses, each in an environment of its own.
serve/                A policy behind HTTP, for clients of OpenAI's API and for learners that send token ids.
plan/                 The needs of a step on a pod that is not there: memory, FLOPs, traffic, and the bound on its time.
report/               The report: one self-contained HTML page of a run, of runs side by side, or of a record directory.
recipes/              Whole recipes: stages of synthesis, training and evaluation in one run.
cli/                  The `astra` command, one file per group of subcommands; heavy imports happen when one runs.
testing               Fakes for tests, of this project or others: a tiny model, tokenizer, environment and sandbox.
launch/               Launch of a run on a pod: a JobSet for Kubernetes, or a script for Compute Engine.
rehearse/             Rehearsal of a pod on this machine: its config, its hosts as processes, a bucket, and all that may
                      happen to them.

`astra_jax.load_policy`, `load_environments` and `roll_out` are the Python interface; what they need is imported when
one of them is asked for.

Decided: docs/decisions/packaging.md, “Folders of a package have an order, and imports run down it”.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astra_jax.recipes.interface import RolledOut, load_environments, load_policy, roll_out

__all__ = ["RolledOut", "load_environments", "load_policy", "roll_out"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'astra_jax' has no attribute {name!r}")
    from astra_jax.recipes import interface

    return getattr(interface, name)
