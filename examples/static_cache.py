"""Decoding with a static cache: a Llama with random weights generates tokens, compiled and eagerly, and says what a token moves.

python examples/static_cache.py [--positions 4096] [--tokens 20]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import torchvision_beside_cpu_torch  # noqa: F401  # isort: skip
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import dcir


def build(positions: int) -> LlamaForCausalLM:
    """Four layers of eight heads, of which four share their keys with another (51 MB of weights in fp32)."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=positions, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def decode(model: torch.nn.Module, config: LlamaConfig, positions: int, tokens: int) -> tuple[list[int], list[float]]:
    """Tokens one by one from an empty cache, and the seconds that each took."""
    cache = StaticCache(config, max_cache_len=positions)
    token, found, seconds = torch.tensor([[7]]), [], []
    with torch.no_grad():
        for _ in range(tokens):
            start = time.perf_counter()
            logits = model(token, past_key_values=cache, use_cache=True).logits
            seconds.append(time.perf_counter() - start)
            token = logits[:, -1:].argmax(-1)
            found.append(int(token))
    return found, seconds


def main() -> None:
    """Compare tokens, bytes and times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=20)
    chosen = parser.parse_args()
    model = build(chosen.positions)
    fast = dcir.optimize(model)
    want, eager = decode(model, model.config, chosen.positions, chosen.tokens)
    got, ours = decode(fast, model.config, chosen.positions, chosen.tokens)
    print(f"tokens equal: {got == want}")
    weights = sum(p.nbytes for p in model.parameters()) - model.model.embed_tokens.weight.nbytes
    heads = model.config.num_key_value_heads * model.config.head_dim
    cache = 2 * model.config.num_hidden_layers * chosen.positions * heads * 4
    moved = fast.dcir.session.graphs[-1].bytes_moved
    print(f"a token moves {moved / 1e6:.1f} MB; weights and cache are {(weights + cache) / 1e6:.1f} MB")
    half = chosen.tokens // 2
    print(
        f"ms a token: eager {statistics.median(eager[half:]) * 1e3:.2f}, dcir {statistics.median(ours[half:]) * 1e3:.2f}"
    )
    prepared = [p.info.static_inputs for p in fast.dcir.session.programs]
    print(f"graphs: {len(prepared)}")


if __name__ == "__main__":
    main()
