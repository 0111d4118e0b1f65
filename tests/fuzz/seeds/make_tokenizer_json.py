#!/usr/bin/env python3
"""Writes the seeds of tokenizer_json_fuzz: a tiny model under every stage of the parity fixtures, and two GGUF vocabularies."""
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "tokenizer_json")
STAGES = os.path.join(HERE, "..", "..", "fixtures", "tokenizer", "stages.json")
TEXT = "a the  Ab 12 </s> e\u0301\u2581x"

vocab = ["<unk>", "<s>", "</s>", " ", "\u2581", "a", "t", "h", "e", "th", "the", "\u2581the", "1", "2", "<0xCC>", "<0x81>", "\u0120"]
model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": {text: i for i, text in enumerate(vocab)},
         "merges": [["t", "h"], ["th", "e"], "\u2581 the"]}
added = [{"id": 2, "content": "</s>", "special": True, "normalized": False, "lstrip": True}, {"id": 17, "content": "Ab", "normalized": True, "single_word": True}]
template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
seeds = [{"model": model, "added_tokens": added, "post_processor": template,
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}}]
for entry in json.load(open(STAGES, encoding="utf-8"))["stages"]:
    seeds.append({"model": model, "added_tokens": added, entry["part"]: entry["stage"]})
ggml = {"tokens": vocab, "token_type": [2, 3, 3] + [1] * 11 + [6, 6, 1]}
seeds.append({"tokenizer.ggml." + key: item for key, item in (ggml | {"model": "llama", "scores": [-i for i in range(17)], "bos_token_id": 1}).items()})
seeds.append({"tokenizer.ggml." + key: item for key, item in (ggml | {"model": "gpt2", "pre": "llama-bpe", "merges": ["t h", "th e"]}).items()})
os.makedirs(OUT, exist_ok=True)
for i, seed in enumerate(seeds):
    with open(os.path.join(OUT, f"{i:02}"), "wb") as file:
        file.write(json.dumps(seed, ensure_ascii=False, separators=(",", ":")).encode() + b"\0" + TEXT.encode())
