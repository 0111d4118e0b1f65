// Which safetensors files of a Hugging Face folder make up the model, and what lies in them.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "models/bind_weights.hpp"
#include "models/mapped_file.hpp"

namespace troupe {

struct folder_tensors {
  std::vector<located_tensor> tensors;
  std::vector<std::shared_ptr<const mapped_file>> files; // what the tensors point into
};

// model.safetensors, else the shards that model.safetensors.index.json names, else the folder's only safetensors file. Files
// beside those ("consolidated", stray ones) are ignored. Throws load_error for a shard that is missing or lacks a tensor that the index
// puts there, and for a folder that leaves the choice open.
folder_tensors read_folder_tensors(const std::filesystem::path& folder);

} // namespace troupe
