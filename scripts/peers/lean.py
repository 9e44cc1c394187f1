"""The small Qwen3 in plain torch, as short as it can be without being slow: the peer that has no framework to pay for.

Keys and values lie in tensors of their full length from the start. Rows go on in lockstep.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from peers.qwen3 import HEAD_DIM, HEADS, KV_HEADS, MLP, THREADS, WIDTH, Shape

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [B, K, S, H]."""


class Qwen3(nn.Module):
    """Embedding, layers, final norm; the output embedding is the input's."""

    def __init__(self, shape: Shape, most_tokens: int):
        super().__init__()
        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        self.embedding = nn.Parameter(0.02 * torch.randn(shape.vocabulary, WIDTH))
        self.layers = nn.ModuleList(_Layer() for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        frequencies_h = 1_000_000 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles_SH = (torch.arange(most_tokens)[:, None] * frequencies_h).repeat(1, 2)
        self.cos_SH, self.sin_SH = angles_SH.cos(), angles_SH.sin()

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None, start: int = 0) -> Tensor:
        """Return hidden states [B, T, D] of tokens that stand `start` behind the first; fill the cache, if any."""
        x_BTD, here = self.embedding[tokens_BT], slice(start, start + tokens_BT.shape[1])
        for number, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, self.cos_SH[here], self.sin_SH[here], cache and cache[number], start)
        return rms_norm(x_BTD, (WIDTH,), self.norm, 1e-6)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits over the vocabulary."""
        return linear(hidden, self.embedding)

    def empty_cache(self, rows: int, tokens: int) -> Cache:
        """Return room for the keys and values of `rows` rows of `tokens` tokens."""
        return [(torch.zeros(rows, KV_HEADS, tokens, HEAD_DIM), torch.zeros(rows, KV_HEADS, tokens, HEAD_DIM))
                for _ in self.layers]  # fmt: skip

    @torch.inference_mode()
    def read_groups(self, prompts_PS: Tensor, group_size: int, tokens: int) -> tuple[Tensor, Cache]:
        """Read one prompt for each group; return logits [B, V] after it and a cache of `tokens` tokens for each row."""
        cache = self.empty_cache(len(prompts_PS), tokens)
        logits_PV = self.logits(self(prompts_PS, cache)[:, -1])
        if group_size > 1:
            cache = [tuple(each.repeat_interleave(group_size, 0) for each in layer) for layer in cache]  # type: ignore[misc]
        return logits_PV.repeat_interleave(group_size, 0), cache

    @torch.inference_mode()
    def sample(
        self, logits_BV: Tensor, cache: Cache, start: int, count: int, *, greedy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Sample `count` tokens for each row at temperature 1, or greedily; return ids and log-probs, [B, count].

        The last one is not in the cache yet.
        """
        ids, logprobs = [], []
        for number in range(count):
            logprobs_BV = logits_BV.log_softmax(-1)
            ids_B1 = logits_BV.argmax(-1, keepdim=True) if greedy else torch.multinomial(logprobs_BV.exp(), 1)
            ids.append(ids_B1)
            logprobs.append(logprobs_BV.gather(-1, ids_B1))
            if number + 1 < count:
                logits_BV = self.logits(self(ids_B1, cache, start + number)[:, -1])
        return torch.cat(ids, 1), torch.cat(logprobs, 1)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shapes = {"qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH), "out": (WIDTH, HEADS * HEAD_DIM)}
        shapes |= {"gate_up": (2 * MLP, WIDTH), "down": (WIDTH, MLP)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / math.sqrt(shape[1])))
        for name, size in {"norm_1": WIDTH, "norm_2": WIDTH, "norm_q": HEAD_DIM, "norm_k": HEAD_DIM}.items():
            setattr(self, name, nn.Parameter(torch.ones(size)))

    def forward(
        self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor, cache: tuple[Tensor, Tensor] | None, start: int
    ) -> Tensor:
        rows, tokens, _ = x_BTD.shape
        qkv = linear(rms_norm(x_BTD, (WIDTH,), self.norm_1, 1e-6), self.qkv).view(rows, tokens, -1, HEAD_DIM)
        q, k, v = qkv.transpose(1, 2).split((HEADS, KV_HEADS, KV_HEADS), 1)
        q, k = (
            y * cos_TH + torch.cat((-y[..., HEAD_DIM // 2 :], y[..., : HEAD_DIM // 2]), -1) * sin_TH
            for y in (rms_norm(q, (HEAD_DIM,), self.norm_q, 1e-6), rms_norm(k, (HEAD_DIM,), self.norm_k, 1e-6))
        )
        if cache is not None:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, start : start + tokens] = new
            k, v = (kept[:, :, : start + tokens] for kept in cache)
        if tokens == 1:  # the heads that share a key are as many queries of it
            y = scaled_dot_product_attention(q.reshape(rows, KV_HEADS, -1, HEAD_DIM), k, v)
        elif start == 0:
            y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            seen_TS = torch.ones(tokens, start + tokens, dtype=torch.bool).tril(start)
            y = scaled_dot_product_attention(q, k, v, attn_mask=seen_TS, enable_gqa=True)
        y = y.reshape(rows, HEADS, tokens, HEAD_DIM).transpose(1, 2).reshape(rows, tokens, -1)
        x_BTD = x_BTD + linear(y, self.out)
        gate, up = linear(rms_norm(x_BTD, (WIDTH,), self.norm_2, 1e-6), self.gate_up).chunk(2, -1)
        return x_BTD + linear(silu(gate) * up, self.down)
