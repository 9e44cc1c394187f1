"""Pre-train the tiny Qwen3 that quickstarts begin with, and write it as a HuggingFace folder in bfloat16.

    python -m scripts.tiny_base.pretrain configs/tiny_base.toml --to runs/tiny_base/hf

    made-up worlds ─► dialogues: several questions behind one list of tools ─► rows ─► `train_sft` ─► HuggingFace folder

The same command again goes on where it stopped: a batch is a pure function of seed and step. The folder is shipped as
`astra_jax/tiny_base`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from pydantic import Field

from astra_jax.chat.format import render
from astra_jax.chat.tokenizer import Tokenizer, train_tiny_tokenizer
from astra_jax.checkpoints.hf import save_hf
from astra_jax.checkpoints.policy import load_policy
from astra_jax.config import ConfigError, load_config
from astra_jax.mesh.placement import place_params
from astra_jax.metrics_file import last_metric
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.qwen3 import init_params
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.data import SFTBatch, SFTSample, make_batch, render_sample
from astra_jax.sft.stage import require_layout
from astra_jax.sft.train import SHOWN, train_sft
from astra_jax.training.config import MAY_CHANGE
from astra_jax.training.run import TrainingRun, checked_parts
from astra_jax.training.run_record import SFT_RUN, open_run
from scripts.tiny_base.made_up_worlds import Dialogue, label_characters, made_up_dialogue
from synthesis.procedural.reworded import meanings
from synthesis.procedural.worlds import name_parts
from synthesis.record_io import RecordSource, digest_of_records
from synthesis.records import Trajectory
from synthesis.run.fingerprint import digest, digest_of_files

_TOKENIZER_DIALOGUES: Final = 2000
_TIMES_NAMED: Final = 1000
"""Times that the tokenizer reads every part of a name and every character."""

_LIKENESS: Final = 0.7
"""Cosine of the embeddings of two words of one meaning."""
_QUERY_KEY_CORRELATION: Final = 0.5**0.5
_COPY_STRENGTH: Final = 0.5

_POSITION_WAVELENGTH_TOKENS: Final = 50
"""Pairs of a head that turn faster tell one position from the next; the first layer looks one token back with them."""
_CONTENT_WAVELENGTH_TOKENS: Final = 800
"""Pairs that turn slower hardly turn within a prompt: tokens are compared in them, wherever they stand."""
_SHARPNESS: Final = 2.0
"""The q/k norms of both layers: q/k norm bounds a score by its square times √H."""
_CONSTANT: Final = 2.0
"""Coordinate 0 of every embedding, in standard deviations of the others: query and key of layer 0 read it alone."""
_INDUCTION_STRENGTH: Final = 2.0
"""How large the token that came after is written, in standard deviations of an embedding. With 6, and sharper heads,
more is copied at first, but less is learnt (docs/log/2026-11-24-what-did-not-learn.md)."""
_FURTHER_BACK: Final = 0.3
"""How much smaller each further query head of layer 0 writes, which looks one more token back."""
_QUIET: Final = 0.3
"""Random MLPs start so much smaller: they would drown the heads' outputs."""


class TinyBaseConfig(SFTConfig):
    """The config of SFT for a pre-training: `length_buckets` are the tokens of an easy row and of any other row.

    The tokenizer is trained on dialogues and on `trajectories`; the model reads dialogues alone.
    """

    easy_steps: int = Field(ge=0)
    """Steps at the start with short questions and few tools."""


def pretrain(config: TinyBaseConfig) -> dict[str, Any]:
    """Pre-train the base to its last step, from the newest whole checkpoint of `out` if there is one.

    Raises:
        ConfigError: the rows are not two lengths, the model's vocabulary is not the tokenizer's, there is a mesh, or
            rows are to come from elsewhere.
        DestinationRefused: `out` is something else than a run, or one of another config, data or code.
        NotFinite, Terminated: as `train_sft`; the state is saved.
    """
    if len(config.length_buckets) != 2 or config.steps is None or config.model is None:
        raise ConfigError(f"expected `steps`, `model` and two `length_buckets`, found {list(config.length_buckets)}")
    if config.mesh is not None:
        raise ConfigError(
            "expected no [mesh], found one: the tiny base is pre-trained on one machine, which draws all rows"
        )
    if config.environments or config.held_out_share or config.init is not None:
        raise ConfigError(
            "every row is made up anew: expected no `environments`, `held_out_share` or `init`; leave them out"
        )
    contents = {
        "trajectories": digest([digest_of_records(directory) for directory in config.trajectories]),
        "script": digest_of_files(sorted(Path(__file__).parent.glob("*.py"))),
    }
    record = open_run(
        SFT_RUN,
        config,
        config.out,
        contents=contents,
        may_change=MAY_CHANGE,
        stage="astra_jax.sft.stage",
    )
    if record.figures is not None:
        return record.figures
    record.begin()
    train_base_tokenizer(config).save(config.out / "tokenizer", model_max_length=config.model.context_tokens)
    config = config.model_copy(update={"tokenizer": config.out / "tokenizer"})
    parts = checked_parts(config, config.tokenizer)
    require_layout(config, parts.model_config, parts.mesh)
    batches = MadeUpBatches(config, parts.tokenizer)
    alike = tokens_alike(parts.tokenizer)
    with TrainingRun("pre-training", config, parts, num_steps=len(batches), shown=("loss", *SHOWN)) as run:
        state = run.restore(lambda: place_params(mimetic_init(parts.model_config, config.seed, alike), parts.mesh))
        state = train_sft(config, parts, state, batches, run)
    figures = {"steps": len(batches), "loss": last_metric(run.metrics, "loss")}
    return run.finish(state, record, data=config.trajectories, figures=figures)


def train_base_tokenizer(config: TinyBaseConfig) -> Tokenizer:
    """Train the tokenizer on made-up dialogues and on trajectories, whose texts are of real tools."""
    assert config.model is not None
    return train_tiny_tokenizer(_tokenizer_texts(config), vocab_size=config.model.vocab_size)


def _tokenizer_texts(config: TinyBaseConfig) -> Iterator[str]:
    # Parts of names and the characters of labels are copied, not spelled: each is to be one token.
    parts = [*name_parts("en")[0], *name_parts("en")[1], *label_characters(), *"".join(map("".join, name_parts("zh")))]
    yield from [" ".join(parts)] * _TIMES_NAMED
    for number in range(_TOKENIZER_DIALOGUES):
        dialogue = made_up_dialogue(random.Random(f"{config.seed}/tokenizer/{number}"), easy=False)
        yield from (render(messages, dialogue.tools) for messages in dialogue.episodes)
    for directory in config.trajectories:
        yield from (render(each.messages, each.tools) for each in RecordSource(directory, Trajectory))


def tokens_alike(tokenizer: Tokenizer) -> list[list[int]]:
    """Return the tokens of each meaning: its wordings, with and without a space and a capital, that are one token."""
    groups = []
    for meaning in (*meanings(), *meanings("tools")):
        forms = [form for word in meaning.en for form in (word, f" {word}", word.capitalize(), f" {word.capitalize()}")]
        encoded = [tokenizer.encode(form) for form in (*forms, *meaning.zh)]
        groups.append(sorted({ids[0] for ids in encoded if len(ids) == 1}))
    return groups


class MadeUpBatches(SFTBatches):
    """The batches of a pre-training by step number: every row one dialogue, drawn when it is asked for."""

    def __init__(self, config: TinyBaseConfig, tokenizer: Tokenizer):
        """Take the settings of the draws; the first row is drawn when it is asked for."""
        assert config.steps is not None
        self._config, self._steps, self._tokenizer = config, config.steps, tokenizer
        self._held_out = []  # each row is new
        # A step's batch is asked for by the thread that makes it, and its lengths by the one that counts them.
        self._rows = lru_cache(maxsize=64)(self._draw_rows)

    def __len__(self) -> int:
        return self._steps

    def num_rows(self, step: int) -> int:
        return self._config.num_rows(self._row_tokens(step))

    def segment_tokens(self, step: int) -> list[int]:
        return [len(sample.ids) for sample in self._rows(step)]

    def __getitem__(self, step: int) -> SFTBatch:
        rows = [[sample] for sample in self._rows(step)]
        row_tokens = self._row_tokens(step)
        return make_batch(rows, num_rows=len(rows), row_tokens=row_tokens, pad_id=self._tokenizer.pad_id)

    def _row_tokens(self, step: int) -> int:
        return self._config.length_buckets[int(not self._is_easy(step))]

    def _is_easy(self, step: int) -> bool:
        return step < self._config.easy_steps

    def _draw_rows(self, step: int) -> tuple[SFTSample, ...]:
        rng = random.Random(f"{self._config.seed}/{step}")
        easy, row_tokens = self._is_easy(step), self._row_tokens(step)
        rows: list[SFTSample] = []
        while len(rows) < self.num_rows(step):
            row = dialogue_sample(made_up_dialogue(rng, easy=easy), self._tokenizer, row_tokens)
            if len(row.ids) <= row_tokens:
                rows.append(row)
        return tuple(rows)


def dialogue_sample(dialogue: Dialogue, tokenizer: Tokenizer, most_tokens: int) -> SFTSample:
    """Return the episodes of a dialogue one after the other behind its tools, as many as there is room for.

    Not as a chat template renders a conversation of several turns: earlier episodes keep their thinking, so that every
    one of them is read as a policy would have written it, and the tools, most of an episode's tokens, stand there once.
    """
    samples = [render_sample(messages, dialogue.tools, tokenizer) for messages in dialogue.episodes]
    if len(samples) == 1:
        return samples[0]
    (im_start,) = tokenizer.encode("<|im_start|>")
    # The tools stand in the system's message; the user's is the second.
    head = int(np.flatnonzero(samples[0].ids == im_start)[1])
    kept, room = [samples[0]], most_tokens - len(samples[0].ids)
    for sample in samples[1:]:
        if len(sample.ids) - head <= room:
            kept.append(SFTSample(sample.ids[head:], sample.loss_mask[head:]))
            room -= len(sample.ids) - head
    return SFTSample(
        np.concatenate([sample.ids for sample in kept]), np.concatenate([sample.loss_mask for sample in kept])
    )


# --- initial weights that copy, and words that are alike ---
#
# A pre-trained model repeats a name that it has read. A small one that starts from random weights spends hundreds of
# steps before it does, and calling a tool is mostly copying. So three traits of trained transformers are laid in:
#
#   every layer     query and key maps correlated, so that a token attends to its like, and output maps near the
#                   transpose of the value maps, so that a token that is attended to is copied (arXiv 2305.09828)
#   layers 0 and 1  an induction head (arXiv 2209.11895): the first layer writes beside each token the token before
#                   it; the second attends to where the present token stood before, and copies its successor there
#   embeddings      those of words of one meaning (synthesis/procedural/reworded.toml) are alike; from random ones the
#                   base had chosen tools no better than by chance after 800 steps
#
# In a language model with tied embeddings a copy raises the logit of the token that was attended to.


def mimetic_init(config: ModelConfig, seed: int, alike: Sequence[Sequence[int]] = ()) -> Params:
    """Return random parameters whose attention copies its matches, with an induction head if there are two layers.

    Tokens of one group of `alike` have embeddings that are alike.

    Keys of a group are correlated with its first query head; each output map is half the transpose of its value map,
    scaled to a product near identity, and half random. The induction head takes the first query and key/value head.
    """
    params = init_params(config, seed)
    embedding_VD, rng = np.array(params["embedding"], np.float32), np.random.default_rng((seed, 2))
    for ids in alike:
        common_D = rng.standard_normal(config.hidden_size) * config.hidden_size**-0.5
        embedding_VD[ids] = _LIKENESS**0.5 * common_D + (1 - _LIKENESS) ** 0.5 * embedding_VD[ids]
    params["embedding"] = jnp.asarray(embedding_VD, params["embedding"].dtype)
    layers = params["layers"]
    heads_per_group = config.num_heads // config.num_kv_heads
    q_LDNH, k_LDKH, v_LDKH = layers["q_proj"], layers["k_proj"], layers["v_proj"]
    correlation = _QUERY_KEY_CORRELATION
    layers["k_proj"] = correlation * q_LDNH[:, :, ::heads_per_group] + (1 - correlation**2) ** 0.5 * k_LDKH
    v_LNHD = jnp.repeat(v_LDKH, heads_per_group, axis=2).transpose(0, 2, 3, 1)
    copy_LNHD = v_LNHD * (config.hidden_size / (config.head_dim * config.num_heads))
    layers["o_proj"] = (_COPY_STRENGTH * copy_LNHD + 0.5 * layers["o_proj"]).astype(layers["o_proj"].dtype)
    layers["k_proj"] = layers["k_proj"].astype(k_LDKH.dtype)
    return _with_induction_head(params, config, seed) if config.num_layers > 1 else params


def _with_induction_head(params: Params, config: ModelConfig, seed: int) -> Params:
    """Lay an induction head into the first key/value head, and its query heads, of layers 0 and 1."""
    rng = np.random.default_rng((seed, 1))
    width, half = config.hidden_size, config.head_dim // 2
    embedding_std = width**-0.5
    embedding_VD = np.array(params["embedding"], np.float32)
    embedding_VD[:, 0] = _CONSTANT * embedding_std
    layers = {name: np.array(weights, np.float32) for name, weights in params["layers"].items()}
    turn = config.rope_theta ** (-np.arange(half) / half)  # radians per token of each pair of a head
    wavelength_tokens = 2 * np.pi / turn
    heads = range(config.num_heads // config.num_kv_heads)
    # Each head of layer 0 writes in an orthogonal frame of its own, so that its output differs from the tokens.
    frames_DD = [np.zeros((width, width)) for _ in heads]
    for frame_DD in frames_DD:
        frame_DD[1:, 1:] = _orthogonal(rng, width - 1)

    # Layer 0: query and key are constants, turned against each other so that they meet so many tokens back.
    fast = wavelength_tokens < _POSITION_WAVELENGTH_TOKENS
    layers["k_proj"][0, :, 0] = 0
    layers["k_proj"][0, 0, 0, :half] = fast
    read_DH = _reading(rng, config)
    layers["v_proj"][0, :, 0] = read_DH
    for head in heads:
        layers["q_proj"][0, :, head] = 0
        layers["q_proj"][0, 0, head, :half] = fast * np.cos((head + 1) * turn)
        layers["q_proj"][0, 0, head, half:] = fast * -np.sin((head + 1) * turn)
        layers["o_proj"][0, head] = _FURTHER_BACK**head * embedding_std * read_DH.T @ frames_DD[head]

    # Layer 1: the query is the token, the key the token before, both in pairs that hardly turn.
    slow = np.flatnonzero(np.tile(wavelength_tokens > _CONTENT_WAVELENGTH_TOKENS, 2))
    compared = slow[: width - 1]
    compare_DH = np.zeros((width, config.head_dim))
    compare_DH[1:, compared] = _orthogonal(rng, width - 1)[:, : len(compared)]
    layers["q_proj"][1, :, heads.start : heads.stop] = compare_DH[:, None]
    layers["k_proj"][1, :, 0] = frames_DD[0].T @ compare_DH
    read_DH = _reading(rng, config)
    layers["v_proj"][1, :, 0] = read_DH
    layers["o_proj"][1, heads.start : heads.stop] *= 0.5  # the others of the group write at random, and less
    layers["o_proj"][1, 0] = _INDUCTION_STRENGTH * embedding_std * read_DH.T

    for norm in ("q_norm", "k_norm"):
        layers[norm][:2] = _SHARPNESS
    layers["down_proj"] *= _QUIET
    like = params["layers"]
    return params | {
        "embedding": jnp.asarray(embedding_VD, params["embedding"].dtype),
        "layers": {name: jnp.asarray(weights, like[name].dtype) for name, weights in layers.items()},
    }


def _reading(rng: np.random.Generator, config: ModelConfig) -> np.ndarray:
    """Return [D, H] orthonormal columns (rows where the head is wider) that read all coordinates but the constant."""
    size = max(config.hidden_size, config.head_dim)
    read_DH = _orthogonal(rng, size)[: config.hidden_size, : config.head_dim]
    read_DH[0] = 0
    return read_DH


def _orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write")
    arguments = parser.parse_args()
    config = load_config(TinyBaseConfig, arguments.config, arguments.overrides)
    figures = pretrain(config)
    policy = load_policy(config.out / "policy")
    save_hf(
        *(policy.params, policy.model_config, arguments.to),
        dtype="bfloat16",
        companions=config.out / "policy",
        license_id="apache-2.0",
    )
    print({"figure": "pretrain_tiny_base", **figures, "to": str(arguments.to)})
