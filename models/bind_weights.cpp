#include "models/bind_weights.hpp"

#include <cstdint>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "models/load_check.hpp"
#include "models/parameters.hpp"
#include "models/vectors.hpp"

namespace troupe {

namespace {

// Mapped files, and copies of tensors that were not aligned in them.
struct bound_storage {
  std::shared_ptr<const void> files;
  std::vector<std::unique_ptr<std::byte[]>> copies;
};

bool is_matrix_type(const file_tensor& tensor) {
  if (!tensor.type) return false;
  return is_quantised(*tensor.type) || *tensor.type == dtype::f32 || *tensor.type == dtype::f16 || *tensor.type == dtype::bf16;
}

// Blocks of quantised types hold 16-bit scales.
std::size_t element_alignment(dtype type) { return type == dtype::f32 ? 4 : 2; }

const std::byte* aligned_data(const file_tensor& tensor, bound_storage& storage) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data.data()) % element_alignment(*tensor.type) == 0) return tensor.data.data();
  auto copy = std::make_unique<std::byte[]>(tensor.data.size());
  std::memcpy(copy.get(), tensor.data.data(), tensor.data.size());
  storage.copies.push_back(std::move(copy));
  return storage.copies.back().get();
}

weight_view bind_matrix(const located_tensor& found, std::int64_t rows, std::int64_t columns, bound_storage& storage) {
  const file_tensor& tensor = found.tensor;
  if (!is_matrix_type(tensor)) fail_load(found.file, tensor.name, "type " + tensor.type_name + " is not supported for a weight");
  // The reader has checked rows against blocks; a Hugging Face file has no quantised types.
  return {*tensor.type, rows, columns, aligned_data(tensor, storage)};
}

// Tensors that carry no weight of their own.
bool may_stay_unused(const file_tensor& tensor, const model_config& config) {
  const std::string_view name = tensor.name;
  if (tensor.data.empty()) return true;                   // markers
  if (name.ends_with("rotary_emb.inv_freq")) return true; // older Llama files; follows from the config
  if (name == "rope_freqs.weight") return true;           // read into rope.frequency_divisors
  return config.tied_head && name == "lm_head.weight";    // a second copy of the embedding
}

} // namespace

model_weights bind_weights(const model_config& config, checkpoint_format format, const std::vector<located_tensor>& tensors,
                           const std::string& source, std::shared_ptr<const void> storage) {
  std::unordered_map<std::string_view, const located_tensor*> by_name;
  for (const located_tensor& item : tensors) by_name.emplace(item.tensor.name, &item);
  auto kept = std::make_shared<bound_storage>();
  kept->files = std::move(storage);

  model_weights weights;
  weights.config = config;
  for (const parameter& wanted : list_parameters(weights)) {
    const std::string& name = format == checkpoint_format::gguf ? wanted.gguf : wanted.hugging_face;
    const auto it = by_name.find(name);
    if (it == by_name.end()) fail_load(source, name, "missing");
    const located_tensor& found = *it->second;
    const std::vector<std::int64_t> shape =
        wanted.is_matrix() ? std::vector<std::int64_t>{wanted.rows, wanted.columns} : std::vector<std::int64_t>{wanted.columns};
    if (found.tensor.shape != shape) {
      fail_load(found.file, name, "shape " + shape_text(found.tensor.shape) + ", but the config asks for " + shape_text(shape));
    }
    if (wanted.is_matrix()) {
      *std::get<weight_view*>(wanted.target) = bind_matrix(found, wanted.rows, wanted.columns, *kept);
    } else {
      *std::get<std::vector<float>*>(wanted.target) = to_floats(found.tensor, found.file);
    }
    weights.total_bytes += found.tensor.data.size();
    by_name.erase(it);
  }
  for (const auto& [name, left] : by_name) {
    if (!may_stay_unused(left->tensor, config)) {
      fail_load(left->file, name,
                "this model (" + config.family + ") has no such parameter; it is not loaded with a part of its weights unused");
    }
  }
  if (config.tied_head) weights.head = weights.embedding;
  weights.storage = std::move(kept);
  return weights;
}

} // namespace troupe
