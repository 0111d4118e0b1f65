#!/usr/bin/env python3
"""Writes a GGUF file with the same weights as another, dequantised to F32: a model on which implementations must agree to rounding.

usage: dequantise_gguf.py IN.gguf OUT.gguf      (needs the `gguf` package)
"""
import sys

import gguf


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(sys.argv[2], architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed([int(n) for n in tensor.shape])))
        writer.add_tensor(tensor.name, weights.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
