"""Create a tiny Llama with random weights, a tokenizer and a chat template. Run it in the
environment of vLLM.

    python scripts/vllm/make_model.py FOLDER

Its replies are meaningless, but vLLM loads it like any other model. The tokenizer is trained on the
text of this repository, so that prompts with code have as many tokens as with a real one (about 3
characters each). Tokens that begin with a double quote are more likely than others, so that strings
in constrained replies end within their limits, and a complete deliberation is possible.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parent.parent.parent
WINDOW = 16_384
INITIAL_SPREAD = 0.02
OUTPUT_SPREAD = 0.5  # wide enough that the tokens are not equally likely
SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT = (
    "{{ '<|begin|>' }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] "
    "}}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer, which can encode and decode every text."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = sorted(
        [
            *ROOT.glob("docs/*.md"),
            *ROOT.glob("src/moothall/*/*.py"),
            *ROOT.glob("tests/unit/**/*.py"),
        ]
    )
    raw.train([str(path) for path in texts], trainer)
    begin, end, *_ = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=begin, eos_token=end, pad_token=end, chat_template=CHAT
    )


def raise_logits(model: LlamaForCausalLM, tokens: list[int], bias: float) -> None:
    """Add about `bias` to the logits of `tokens` in each context.

    Every embedding has the same large first component, which random layers hardly change. So a
    column of the output matrix replaces the bias, which this architecture lacks.
    """
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        rms = (
            float(
                (1 + (model.config.hidden_size - 1) * INITIAL_SPREAD**2) / model.config.hidden_size
            )
            ** 0.5
        )
        model.lm_head.weight.normal_(std=OUTPUT_SPREAD)
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[tokens, 0] = bias * rms


def main() -> None:
    """Write the model and its tokenizer."""
    folder = Path(sys.argv[1])
    tokenizer = train_tokenizer()
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=WINDOW,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        initializer_range=INITIAL_SPREAD,
    )
    model = LlamaForCausalLM(config)
    raise_logits(
        model,
        [number for token, number in tokenizer.get_vocab().items() if token.startswith('"')],
        bias=6.0,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
