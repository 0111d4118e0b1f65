// What the SentencePiece library does not tell about a model file: kinds of pieces, and which of its features the model uses.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/scored_pieces.hpp"

namespace troupe {

struct sentencepiece_file {
  std::vector<piece_kind> kinds; // by id
  bool bpe = false;              // model_type BPE, not unigram or others
  bool plain_text = true;        // text is taken as it is: no character map, blanks are not squeezed but become "\u2581"
  bool blank_first = true;       // a blank is put before every text
};

// Reads the protocol buffer (google/sentencepiece, src/sentencepiece_model.proto). None when it is malformed.
std::optional<sentencepiece_file> read_sentencepiece_file(std::string_view bytes);

} // namespace troupe
