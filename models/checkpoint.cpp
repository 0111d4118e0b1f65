#include "models/checkpoint.hpp"

#include <system_error>
#include <utility>

#include "core/json.hpp"
#include "models/bind_weights.hpp"
#include "models/gguf.hpp"
#include "models/gguf_config.hpp"
#include "models/hf_config.hpp"
#include "models/hf_folder.hpp"
#include "models/load_check.hpp"
#include "models/mapped_file.hpp"
#include "models/safetensors.hpp"

namespace troupe {

namespace {

constexpr std::size_t kConfigLimit = 16U << 20;

// Both formats once they are read.
class opened_checkpoint final : public checkpoint {
 public:
  opened_checkpoint(checkpoint_format format, std::filesystem::path path, value metadata, value generation, model_config config,
                    std::vector<located_tensor> tensors, std::string identity, std::shared_ptr<const void> storage)
      : format_(format),
        path_(std::move(path)),
        metadata_(std::move(metadata)),
        generation_(std::move(generation)),
        config_(std::move(config)),
        tensors_(std::move(tensors)),
        identity_(std::move(identity)),
        storage_(std::move(storage)) {
    for (const located_tensor& item : tensors_) {
      const file_tensor& tensor = item.tensor;
      stored_.push_back({tensor.name, tensor.type, tensor.type_name, tensor.shape, item.file, tensor.data.size()});
    }
  }

  checkpoint_format format() const override { return format_; }
  const model_config& config() const override { return config_; }
  const std::vector<stored_tensor>& tensors() const override { return stored_; }
  const value& metadata() const override { return metadata_; }
  const value& generation_config() const override { return generation_; }
  const std::filesystem::path& path() const override { return path_; }
  model_weights load() const override {
    model_weights weights = bind_weights(config_, format_, tensors_, path_.string(), storage_);
    if (!identity_.empty()) {
      weights.source.origin = path_.string();
      weights.source.identity = identity_;
    }
    return weights;
  }

 private:
  checkpoint_format format_;
  std::filesystem::path path_;
  value metadata_;
  value generation_;
  model_config config_;
  std::vector<located_tensor> tensors_;
  std::vector<stored_tensor> stored_;
  std::string identity_; // of the files; empty for bytes in memory
  std::shared_ptr<const void> storage_;
};

std::vector<located_tensor> located(std::vector<file_tensor> tensors, const std::string& file) {
  std::vector<located_tensor> out;
  out.reserve(tensors.size());
  for (file_tensor& tensor : tensors) out.push_back({std::move(tensor), file});
  return out;
}

value parse_object(std::string_view text, const std::string& file) {
  auto parsed = json::parse(text);
  if (!parsed) fail_load(file, "", parsed.failure().message);
  if (!parsed->is_object()) fail_load(file, "", "not a JSON object");
  return std::move(parsed).value();
}

std::shared_ptr<const checkpoint> make_gguf(std::span<const std::byte> bytes, const std::filesystem::path& path, std::string identity,
                                            std::shared_ptr<const void> storage) {
  gguf_file file = parse_gguf(bytes, path.string());
  model_config config = parse_gguf_config(file.metadata, file.tensors, path.string());
  return std::make_shared<opened_checkpoint>(checkpoint_format::gguf, path, std::move(file.metadata), value(value_object()),
                                             std::move(config), located(std::move(file.tensors), path.string()), std::move(identity),
                                             std::move(storage));
}

struct folder_config {
  value metadata;
  value generation;
  model_config config;
};

// config.json, and generation_config.json beside it where there is one.
folder_config read_folder_config(const std::filesystem::path& config_path) {
  folder_config out;
  out.metadata = parse_object(read_text_file(config_path, kConfigLimit), config_path.string());
  out.generation = value_object();
  const std::filesystem::path generation_path = config_path.parent_path() / "generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation_path, ignored)) {
    out.generation = parse_object(read_text_file(generation_path, kConfigLimit), generation_path.string());
  }
  out.config = parse_hf_config(out.metadata, out.generation, config_path.string());
  return out;
}

std::shared_ptr<const checkpoint> make_folder(const std::filesystem::path& folder, folder_config read, folder_tensors found) {
  std::string identity;
  for (const auto& file : found.files) identity += file->identity();
  auto storage = std::make_shared<std::vector<std::shared_ptr<const mapped_file>>>(std::move(found.files));
  return std::make_shared<opened_checkpoint>(checkpoint_format::hugging_face, folder, std::move(read.metadata), std::move(read.generation),
                                             std::move(read.config), std::move(found.tensors), std::move(identity), std::move(storage));
}

std::shared_ptr<const checkpoint> open_folder(const std::filesystem::path& folder) {
  folder_config read = read_folder_config(folder / "config.json");
  return make_folder(folder, std::move(read), read_folder_tensors(folder));
}

} // namespace

std::shared_ptr<const checkpoint> open_checkpoint(const std::filesystem::path& path) {
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) fail_load(path.string(), "", "no such file or folder");
  if (std::filesystem::is_directory(status)) return open_folder(path);
  auto file = mapped_file::open(path);
  if (!looks_like_gguf(file->bytes())) {
    const bool hint = path.extension() == ".safetensors" || path.filename() == "config.json";
    fail_load(path.string(), "",
              hint ? "give the folder that holds the model, not one of its files" : "neither a model folder nor a GGUF file");
  }
  const auto bytes = file->bytes();
  const std::string identity = file->identity();
  return make_gguf(bytes, path, identity, std::move(file));
}

std::shared_ptr<const checkpoint> open_gguf_bytes(std::span<const std::byte> bytes, const std::string& name) {
  return make_gguf(bytes, name, {}, nullptr);
}

std::shared_ptr<const checkpoint> open_safetensors_bytes(std::string_view config_json, std::span<const std::byte> bytes,
                                                         const std::string& name) {
  const std::string config_name = name + "/config.json";
  value metadata = parse_object(config_json, config_name);
  model_config config = parse_hf_config(metadata, value_object(), config_name);
  std::vector<located_tensor> tensors = located(parse_safetensors(bytes, name), name);
  return std::make_shared<opened_checkpoint>(checkpoint_format::hugging_face, name, std::move(metadata), value(value_object()),
                                             std::move(config), std::move(tensors), std::string(), nullptr);
}

std::shared_ptr<const checkpoint> open_checkpoint_without_weights(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return open_checkpoint(path);
  return make_folder(path, read_folder_config(path / "config.json"), {});
}

} // namespace troupe
