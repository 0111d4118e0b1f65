// Opens a Hugging Face folder or a .gguf file and hands out a model_weights whose every parameter is filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/value.hpp"
#include "models/model.hpp"

namespace troupe {

enum class checkpoint_format : std::uint8_t { hugging_face, gguf };

struct stored_tensor {
  std::string name;
  std::optional<dtype> type;       // none: a type that no kernel here reads (FP8 and the like)
  std::string type_name;           // as the format spells it
  std::vector<std::int64_t> shape; // outermost first, for both formats
  std::string file;
  std::size_t bytes = 0;
};

// What lies on disk, before weights are bound. Files stay mapped as long as this, or weights made from it, live.
class checkpoint {
 public:
  virtual ~checkpoint() = default;
  virtual checkpoint_format format() const = 0;
  virtual const model_config& config() const = 0;
  virtual const std::vector<stored_tensor>& tensors() const = 0;
  // GGUF: all key-value pairs as one object. Hugging Face: config.json.
  virtual const value& metadata() const = 0;
  // generation_config.json (an object, maybe empty).
  virtual const value& generation_config() const = 0;
  // The folder, or the .gguf file.
  virtual const std::filesystem::path& path() const = 0;
  // Binds every parameter; throws load_error naming file, tensor and reason when one is missing or misshaped.
  virtual model_weights load() const = 0;
};

// Throws load_error: one line, "FILE: TENSOR OR KEY: REASON".
std::shared_ptr<const checkpoint> open_checkpoint(const std::filesystem::path& path);

// The same over bytes in memory, which must outlive the checkpoint and what it loads. `name` stands for the file in error lines.
std::shared_ptr<const checkpoint> open_gguf_bytes(std::span<const std::byte> bytes, const std::string& name);
std::shared_ptr<const checkpoint> open_safetensors_bytes(std::string_view config_json, std::span<const std::byte> bytes,
                                                         const std::string& name);

// For --load-format dummy: a Hugging Face folder of which only the configs are read and needed (no tensors; load() says what is
// missing), or a GGUF file as ever. Throws load_error.
std::shared_ptr<const checkpoint> open_checkpoint_without_weights(const std::filesystem::path& path);

// Random weights of a config's shapes (--load-format dummy), stored as `type`. The same seed gives the same weights.
model_weights make_dummy_weights(const model_config& config, dtype type, std::uint64_t seed);
// The same, with matrices that are zeros until source.make is called: for those who may find them kept.
model_weights plan_dummy_weights(const model_config& config, dtype type, std::uint64_t seed);

} // namespace troupe
