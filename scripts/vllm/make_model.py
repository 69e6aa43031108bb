"""Makes a tiny Llama with random weights, its tokenizer and a chat template. Run in vLLM's own
environment.

    python scripts/vllm/make_model.py FOLDER

It says nothing sensible; everything else about it is real: vLLM loads it like any other model. The
tokenizer is trained
on this repository's own text, so that prompts about code take as many tokens as with a real one
(about 3 characters each). Of all the tokens, those that begin with a double quote are made more
likely: strings in constrained replies then come to
an end within their limits, and a whole deliberation can be held with it.
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
OUTPUT_SPREAD = 0.5  # wide enough that sampling is no coin toss among all tokens
SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT = (
    "{{ '<|begin|>' }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] "
    "}}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: every text has tokens, and every byte can be said."""
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


def favour(model: LlamaForCausalLM, tokens: list[int], bias: float) -> None:
    """Add about `bias` to the logits of `tokens`, whatever came before.

    Every embedding has the same large first component, and random layers hardly change it: a column
    of the output matrix
    is then as good as the bias that this architecture lacks.
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
    """Write the model."""
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
    favour(
        model,
        [number for token, number in tokenizer.get_vocab().items() if token.startswith('"')],
        bias=6.0,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
