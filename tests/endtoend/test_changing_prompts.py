"""Generation at changing lengths, beside test_changing_sizes: speech to text, and dcir as the compiler of transformers."""

import copy

import pytest
import torch

import dcir
from tests.endtoend.test_architectures import _import_or_skip
from tests.endtoend.test_changing_sizes import NETWORKS, bounded

pytestmark = pytest.mark.in_turn(6)

PROMPTS = ((1, 7), (1, 4), (2, 11), (1, 12), (3, 19))


def whisper():
    import transformers

    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder")
             for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))}  # fmt: skip
    config = transformers.WhisperConfig(
        vocab_size=200, d_model=64, num_mel_bins=8, max_source_positions=16, max_target_positions=64, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=3, begin_suppress_tokens=None, suppress_tokens=None, **sizes,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config).eval()


@pytest.mark.parametrize(
    ("how", "batches"),
    [({}, [1] * 5), ({"cache_implementation": "static"}, [1, 1, 2, 1, 3])],
    # Of several recordings, the first step over a growing cache is compiled for each length of the prompt.
    ids=["growing cache", "static cache"],
)
@torch.no_grad()
def test_whisper(how, batches):
    """Tokens are eager's for every batch and prompt; what is compiled once all kinds of calls have come is all there is."""
    _import_or_skip("transformers")
    torch.manual_seed(0)
    plain = whisper()
    fast = dcir.optimize(copy.deepcopy(plain))
    made = []
    for batch, length in zip((*batches, *batches[-2:]), (7, 4, 11, 12, 19, 9, 10), strict=True):
        sound, ids = torch.randn(batch, 8, 32), torch.randint(4, 200, (batch, length))
        tokens = [
            net.generate(sound, decoder_input_ids=ids, max_new_tokens=6, min_new_tokens=6, **how)
            for net in (fast, plain)
        ]
        assert torch.equal(*tokens), (batch, length)
        made.append(len(fast.dcir.explain().graphs))
    assert made[-1] <= 8 and made[-1] == made[-3], made
    assert bounded(fast)[0] and not fast.dcir.explain().breaks


@pytest.mark.parametrize("by", ["compile_config", "torch.compile"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@torch.no_grad()
def test_as_the_compiler_of_transformers(name, by):
    """With a static cache, whose length is another one for each prompt."""
    _import_or_skip("transformers")
    import transformers

    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = NETWORKS[name](transformers).eval()
    fast, more = copy.deepcopy(plain), {}
    if by == "torch.compile":
        fast.forward = torch.compile(fast.forward, backend="dcir")
    else:
        more["compile_config"] = transformers.CompileConfig(backend="dcir", mode=None, fullgraph=False)
        more["compile_config"]._compile_all_devices = True  # transformers compiles for a GPU only, if left to itself
    before = dcir.sessions()  # and so they live on
    made = []
    for batch, length in (*PROMPTS, (2, 9)):
        ids = torch.randint(3, 200, (batch, length))
        tokens = [
            net.generate(
                ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, cache_implementation="static", **kind
            )
            for net, kind in ((fast, more), (plain, {}))
        ]
        assert torch.equal(*tokens), (batch, length)
        made.append([g for s in dcir.sessions() if s not in before for g in s.explain().graphs])
    assert 0 < len(made[-1]) == len(made[-2]) <= 8, list(map(len, made))
    assert any(g.bounds for g in made[-1])


@pytest.mark.parametrize("name", ["llama", "mistral"])
@torch.no_grad()
def test_padded_batches(name):
    """Of several prompts some begin later: the mask is one longer than a cache that grows, or than what a window keeps of it."""
    _import_or_skip("transformers")
    import transformers

    torch.manual_seed(0)
    torch._dynamo.reset()
    sizes = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 200, "max_position_embeddings": 256, "pad_token_id": 0,
    }  # fmt: skip
    if name == "llama":
        plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    else:
        plain = transformers.MistralForCausalLM(transformers.MistralConfig(sliding_window=8, **sizes)).eval()
    fast, made = dcir.optimize(copy.deepcopy(plain)), []
    for batch, length, late in ((2, 11, 3), (3, 19, 6), (2, 12, 2), (4, 9, 1)):
        ids = torch.randint(3, 200, (batch, length))
        mask = torch.ones_like(ids)
        ids[1, :late] = mask[1, :late] = 0
        tokens = [
            net.generate(ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False)
            for net in (fast, plain)
        ]
        assert torch.equal(*tokens), (batch, length)
        made.append(len(fast.dcir.explain().graphs))
    assert made[0] <= 3 and made[-1] == made[1] <= 5, made


@torch.no_grad()
def test_a_window_that_fills():
    """Before a window is full, when it is, and behind prompts that are longer: what a call reads is where the last one left it."""
    _import_or_skip("transformers")
    import transformers

    torch.manual_seed(0)
    torch._dynamo.reset()
    config = transformers.MistralConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=200,
        sliding_window=48,
    )  # fmt: skip
    plain = transformers.MistralForCausalLM(config).eval()
    fast, made = dcir.optimize(copy.deepcopy(plain)), []
    for length in (5, 41, 60, 17, 44, 90, 75):
        ids = torch.randint(3, 200, (1, length))
        tokens = [net.generate(ids, max_new_tokens=10, min_new_tokens=10, do_sample=False) for net in (fast, plain)]
        assert torch.equal(*tokens), length
        made.append(len(fast.dcir.explain().graphs))
    # A step before the window is full, the one that fills it, and those that follow, after short prompts and after long ones.
    assert made[-1] == made[-2] <= 10, made
    assert not fast.dcir.explain().breaks


@torch.no_grad()
def test_assisted_decoding():
    """A step takes several tokens, and what was guessed wrongly is cut off the cache, whose strides stay."""
    _import_or_skip("transformers")
    import transformers

    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = NETWORKS["llama"](transformers).eval()
    assistant = copy.deepcopy(plain)
    for weight in assistant.parameters():
        weight.add_(0.02 * torch.randn_like(weight))
    fast, made = dcir.optimize(copy.deepcopy(plain)), []
    for length in (7, 12, 5):
        ids = torch.randint(3, 200, (1, length))
        tokens = [
            net.generate(ids, assistant_model=assistant, max_new_tokens=12, min_new_tokens=12, do_sample=False)
            for net in (fast, plain)
        ]
        assert torch.equal(*tokens), length
        made.append(len(fast.dcir.explain().graphs))
    assert made[0] <= 4 and made[-1] <= 6, made
