#!/usr/bin/env python3
"""Seeds for the weight-file fuzz targets: small valid files, and one of each kind of fault seen in the wild.

Needs nothing but Python:  python3 make_weight_seeds.py   (writes beside this file, under seeds/)
"""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def u32(key, number):
    return pair(key, U32, struct.pack("<I", number))


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(pairs, tensors=(), data=b"", counts=None, version=3, alignment=32):
    tensor_count, pair_count = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, pair_count) + b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def whole_model(architecture, version=3, quantised=False, extra=()):
    """One layer, width 32, one head of 32; every matrix F32 or Q8_0."""
    a = architecture
    pairs = [pair("general.architecture", STRING, text(a)), u32(f"{a}.embedding_length", 32), u32(f"{a}.feed_forward_length", 32),
             u32(f"{a}.block_count", 1), u32(f"{a}.context_length", 64), u32(f"{a}.attention.head_count", 1),
             pair(f"{a}.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
             pair("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("<|im_end|>")),
             pair("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQii", I32, 2, 1, 3)), *extra]
    names = [("token_embd.weight", [32, 2]), ("output_norm.weight", [32]), ("blk.0.attn_norm.weight", [32]), ("blk.0.ffn_norm.weight", [32])]
    names += [(f"blk.0.{n}.weight", [32, 32]) for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
    if a == "qwen2":
        names += [(f"blk.0.attn_{n}.bias", [32]) for n in "qkv"]
    if a == "qwen3":
        names += [(f"blk.0.attn_{n}_norm.weight", [32]) for n in "qk"]
    tensors, offset = [], 0
    for name, dims in names:
        kind = 8 if quantised and len(dims) == 2 else 0
        rows = dims[1] if len(dims) == 2 else 1
        tensors.append(tensor(name, dims, kind, offset))
        offset += -(-rows * (34 if kind == 8 else 128) // 32) * 32
    return gguf(pairs, tensors, b"\0" * offset, version=version)


def gguf_seeds():
    yarn = [pair("qwen3.rope.scaling.type", STRING, text("yarn")), pair("qwen3.rope.scaling.factor", F32, struct.pack("<f", 4)),
            u32("qwen3.rope.scaling.original_context_length", 16)]
    yield "llama", whole_model("llama")
    yield "llama-q8-v2", whole_model("llama", 2, True)
    yield "qwen2", whole_model("qwen2", quantised=True)
    yield "qwen3-yarn", whole_model("qwen3", quantised=True, extra=yarn)
    yield "zero-dimension", gguf([], [tensor("t", [4, 0], 0, 0)])
    yield "alignment-int32", gguf([pair("general.alignment", I32, struct.pack("<i", 32))])
    for value in (0, 2**32 - 32, 2**30):
        yield f"alignment-{value}", gguf([u32("general.alignment", value)])
    yield "size-wraps", gguf([], [tensor("t", [2**62 - 4], 0, 0)])
    yield "counts", gguf([], counts=(2**60, 2**60))
    yield "array-type", gguf([pair("k", ARRAY, struct.pack("<IQ", 77, 1))])
    yield "array-of-arrays", gguf([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1))])
    yield "string-length", gguf([struct.pack("<Q", 2**64 - 16)], counts=(0, 1))
    yield "offset", gguf([], [tensor("t", [8], 0, 2**40)])


def safetensors(entries, data, metadata=None):
    header = {} if metadata is None else {"__metadata__": metadata}
    header.update({n: {"dtype": d, "shape": s, "data_offsets": o} for n, d, s, o in entries})
    raw = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def safetensors_model(kind, size):
    """The model that safetensors_fuzz.cpp binds: hidden 2, one layer, three tokens, tied."""
    shapes = {"model.embed_tokens.weight": [3, 2], "model.norm.weight": [2], "model.layers.0.input_layernorm.weight": [2],
              "model.layers.0.post_attention_layernorm.weight": [2]}
    shapes.update({f"model.layers.0.{n}.weight": [2, 2] for n in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")})
    entries, at = [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1) * size
        entries.append((name, kind, shape, [at, at + count]))
        at += count
    return safetensors(entries, b"\0" * at, {"format": "pt"})


def safetensors_seeds():
    yield "model-f32", safetensors_model("F32", 4)
    yield "model-bf16", safetensors_model("BF16", 2)
    yield "empty-metadata", safetensors([("t", "F32", [0], [0, 0])], b"", {})
    yield "no-bytes", safetensors([("t", "F32", [1], [0, 0])], b"")
    yield "overlap", safetensors([("a", "U8", [2], [0, 2]), ("b", "U8", [2], [1, 3])], b"abc")
    yield "wraps", safetensors([("t", "F64", [2**61], [0, 0])], b"")
    yield "header-length", struct.pack("<Q", 2**63) + b"{}"


def config_seeds():
    for folder in sorted((HERE.parent / "fixtures/models").iterdir()):
        if (folder / "config.json").is_file():
            yield folder.name, (folder / "config.json").read_bytes()


def main():
    for target, seeds in (("gguf", gguf_seeds()), ("safetensors", safetensors_seeds()), ("model_config", config_seeds())):
        folder = HERE / "seeds" / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in seeds:
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
