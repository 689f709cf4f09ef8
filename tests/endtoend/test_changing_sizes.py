"""README's cases of sizes that change: each is one program from the first call on, or from the second, and nobody is warned twice."""

import copy
import warnings

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import RecompileWarning
from tests.endtoend.test_architectures import _import_or_skip
from tests.harness import check_close
from tests.moving import Encoder

pytestmark = pytest.mark.in_turn(6)


def bounded(fast):
    """The programs for all sizes, and the others."""
    graphs = fast.dcir.explain().graphs
    return [g for g in graphs if g.bounds], [g for g in graphs if not g.bounds]


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        return nn.functional.interpolate(self.b(self.a(x).relu()), size=x.shape[2:], mode="bilinear")


@torch.no_grad()
def test_text():
    net = Encoder(24).eval()
    fast, wide = dcir.optimize(net, dynamic=True), copy.deepcopy(net).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for batch, length in ((3, 17), (2, 60), (8, 5), (1, 33)):
            args = torch.randint(0, 50, (batch, length)), torch.ones(batch, length)
            for got, want, exact in zip(fast(*args), net(*args), wide(args[0], args[1].double()), strict=True):
                check_close(got, want, exact)
    moving, constant = bounded(fast)
    assert len(moving) == 1 and not constant


@torch.no_grad()
def test_images():
    net = Segmenter().eval()
    fast = dcir.optimize(net, dynamic={"x": {2: "height", 3: "width"}})
    wide = copy.deepcopy(net).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for height, width in ((32, 48), (40, 20), (57, 33), (120, 96)):
            x = torch.randn(2, 3, height, width)
            check_close(fast(x), net(x), wide(x.double()))
    moving, constant = bounded(fast)
    assert len(moving) == 1 and not constant


def test_last_batch():
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).train()
    fast, wide = dcir.optimize(net), copy.deepcopy(net).double()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", RecompileWarning)
        for batch in (32, 32, 12, 32, 7):
            x, y = torch.randn(batch, 20), torch.randint(0, 5, (batch,))
            for run, n, t in ((fast, net, torch.float32), (wide, wide, torch.float64)):
                n.zero_grad()
                nn.functional.cross_entropy(run(x.to(t)), y).backward()
            for p, q in zip(net.parameters(), wide.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad.float(), rtol=1e-4, atol=1e-6)
    assert sum(w.category is RecompileWarning for w in heard) == 1
    moving, constant = bounded(fast)
    assert len(moving) == len(constant) == 2


NETWORKS = {
    "llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(num_key_value_heads=2, **_SMALL)),
    "qwen": lambda t: t.Qwen2ForCausalLM(t.Qwen2Config(num_key_value_heads=2, bos_token_id=1, eos_token_id=2, **_SMALL)),
    "gpt2": lambda t: t.GPT2LMHeadModel(
        t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=200, n_positions=256, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    ),
    "t5": lambda t: t.T5ForConditionalGeneration(
        t.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=200, decoder_start_token_id=0, pad_token_id=0)
    ),
}  # fmt: skip
_SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 200,
    "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_generate(name):
    """Tokens are eager PyTorch's; of decoders prompt and step are compiled once for all lengths, besides the first prompt."""
    _import_or_skip("transformers")
    import transformers

    torch.manual_seed(0)
    plain = NETWORKS[name](transformers).eval()
    fast = dcir.optimize(copy.deepcopy(plain))
    _same_tokens(fast, plain, {"do_sample": False})
    if name != "t5":
        assert len(fast.dcir.explain().graphs) == 3 and not fast.dcir.explain().breaks


@pytest.mark.parametrize("how", [{"do_sample": True, "top_k": 20}, {"num_beams": 3}, {"cache_implementation": "static"}],
                         ids=["sampling", "beams", "static cache"])  # fmt: skip
def test_ways_to_generate(how):
    _import_or_skip("transformers")
    import transformers

    torch.manual_seed(0)
    plain = NETWORKS["llama"](transformers).eval()
    _same_tokens(dcir.optimize(copy.deepcopy(plain)), plain, how)


@torch.no_grad()
def _same_tokens(fast, plain, how):
    for length in (7, 4, 19, 11):
        ids = torch.randint(3, 200, (1, length))
        tokens = []
        for net in (fast, plain):
            torch.manual_seed(5)
            tokens.append(net.generate(ids, max_new_tokens=10, min_new_tokens=10, **how))
        assert torch.equal(*tokens), length
