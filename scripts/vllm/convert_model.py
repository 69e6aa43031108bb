"""Convert the weights of the embedded model from GGUF to a folder that vLLM can load. Run it in the
environment of vLLM.

    python scripts/vllm/convert_model.py FILE.gguf FOLDER

vLLM 0.32 does not support GGUF, and the package index has this model in no other format. The
weights are those of the embedded server, dequantized to bfloat16. Tokenizer and chat template,
including tools, are those of the file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def rename(name: str) -> str:
    """Return the name of a tensor of the file in Transformers."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        return f"model.layers.{match[1]}.{_NAMES[match[2]]}.{match[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_NAMES[stem]}.{kind}"


def main() -> None:
    """Write the folder with the converted model."""
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    reader = GGUFReader(file)

    def read_field(key: str) -> Any:
        return reader.fields[f"qwen2.{key}"].contents()

    tensors = {
        rename(tensor.name): torch.tensor(dequantize(tensor.data, tensor.tensor_type)).to(
            torch.bfloat16
        )
        for tensor in reader.tensors
        if tensor.name != "output.weight"  # tied to the embeddings
    }
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config = Qwen2Config(
        vocab_size=len(tensors["model.embed_tokens.weight"]),
        hidden_size=read_field("embedding_length"),
        intermediate_size=read_field("feed_forward_length"),
        num_hidden_layers=read_field("block_count"),
        num_attention_heads=read_field("attention.head_count"),
        num_key_value_heads=read_field("attention.head_count_kv"),
        max_position_embeddings=read_field("context_length"),
        rms_norm_eps=read_field("attention.layer_norm_rms_epsilon"),
        rope_theta=read_field("rope.freq_base"),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
        dtype=torch.bfloat16,
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    remove_call_tokens(folder / "tokenizer.json")


def remove_call_tokens(file: Path) -> None:
    """Make the tags of tool calls ordinary text: the small model writes them as the prompt
    requires, but was not trained with the two special tokens.
    """
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [
        token for token in tokenizer["added_tokens"] if "tool_call" not in token["content"]
    ]
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
