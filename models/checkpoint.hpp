// Opens a Hugging Face folder or a .gguf file and hands out a model_weights whose every parameter is filled.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/value.hpp"
#include "models/model.hpp"

namespace troupe {

enum class checkpoint_format : std::uint8_t { hugging_face, gguf };

struct stored_tensor {
  std::string name;
  dtype type = dtype::f32;
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

// Random weights of a config's shapes (--load-format dummy), stored as `type`. The same seed gives the same weights.
model_weights make_dummy_weights(const model_config& config, dtype type, std::uint64_t seed);

} // namespace troupe
