// SentencePiece's BPE in terms of ranked merges: a vocabulary of pieces with scores, as in .model files and GGUF "llama" vocabularies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/bpe_tokenizer.hpp"

namespace troupe {

// sentencepiece_model.proto, ModelProto.SentencePiece.Type; GGUF's tokenizer.ggml.token_type is the same.
enum class piece_kind : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

inline bool is_control(piece_kind kind) { return kind == piece_kind::unknown || kind == piece_kind::control; }

// Fills merges, model options, normalisers and decoder of `parts`, whose texts are there; kinds and scores go by id. `prefix`: a blank is
// put before every text, and dropped from decoded ones. Throws load_error (`where` first) on a piece of absurd length.
void make_scored_model(const std::vector<piece_kind>& kinds, const std::vector<float>& scores, bool prefix, bpe_tokenizer_parts& parts,
                       const std::string& where);

} // namespace troupe
