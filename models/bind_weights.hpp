// Stored tensors -> model_weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint.hpp"
#include "models/tensor_file.hpp"

namespace troupe {

// One tensor and the file it was found in (for error lines).
struct located_tensor {
  file_tensor tensor;
  std::string file;
};

// Fills every parameter of `config` from `tensors`, without copying matrices (but where the file does not align their elements).
// Throws load_error for a missing or misshaped tensor, for a type no kernel reads, and for a tensor that the model would leave
// unused: half a model gives plausible nonsense. `source` names the checkpoint in the error line of a missing tensor;
// `storage` keeps the tensors' bytes alive.
model_weights bind_weights(const model_config& config, checkpoint_format format, const std::vector<located_tensor>& tensors,
                           const std::string& source, std::shared_ptr<const void> storage);

} // namespace troupe
