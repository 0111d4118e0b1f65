#include "apps/cluster/fingerprint.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/json.hpp"

namespace troupe::apps {

namespace {

class hash {
 public:
  void add(std::string_view text) {
    for (const char c : text) step(static_cast<unsigned char>(c));
    step(0xff); // no byte of UTF-8: "a" and "b" are not "ab"
  }
  void add(std::uint64_t number) { add(std::to_string(number)); }
  std::string text() const {
    std::string digits;
    for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(state_ >> shift) & 15];
    return digits;
  }

 private:
  void step(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3U; } // FNV-1a, 64 bits
  std::uint64_t state_ = 0xcbf29ce484222325U;
};

void add(hash& all, const checkpoint& source) {
  // A GGUF file's metadata holds its tokenizer, too.
  all.add(json::dump(source.metadata()));
  std::vector<const stored_tensor*> tensors;
  for (const stored_tensor& tensor : source.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const stored_tensor* tensor : tensors) {
    all.add(tensor->name);
    all.add(tensor->type_name);
    for (const std::int64_t extent : tensor->shape) all.add(static_cast<std::uint64_t>(extent));
    all.add(tensor->bytes);
  }
}

} // namespace

std::string fingerprint(const engine_options& options, const checkpoint& source) {
  hash all;
  add(all, source);
  if (!options.draft_model.empty()) {
    const bool dummy = options.load_format == "dummy";
    add(all, *(dummy ? open_checkpoint_without_weights(options.draft_model) : open_checkpoint(options.draft_model)));
  }
  return all.text();
}

} // namespace troupe::apps
