#include "models/hf_folder.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "core/json.hpp"
#include "models/load_check.hpp"
#include "models/safetensors.hpp"

namespace troupe {

namespace {

constexpr std::size_t kIndexLimit = 256U << 20;
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// Maps a file and adds its tensors; with `wanted`, only those, all of which must be there.
void add_file(folder_tensors& out, const std::filesystem::path& path, const std::set<std::string>* wanted) {
  auto file = mapped_file::open(path);
  std::size_t found = 0;
  for (file_tensor& tensor : parse_safetensors(file->bytes(), path.string())) {
    if (wanted && !wanted->contains(tensor.name)) continue;
    ++found;
    out.tensors.push_back({std::move(tensor), path.string()});
  }
  if (wanted && found != wanted->size()) {
    std::set<std::string> missing = *wanted;
    for (const located_tensor& item : out.tensors) {
      if (item.file == path.string()) missing.erase(item.tensor.name);
    }
    fail_load(path.string(), *missing.begin(), std::string("missing, but ") + kIndexName + " puts it in this file");
  }
  out.files.push_back(std::move(file));
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

folder_tensors read_indexed(const std::filesystem::path& folder) {
  const std::filesystem::path index_path = folder / kIndexName;
  const auto index = json::parse(read_text_file(index_path, kIndexLimit));
  if (!index) fail_load(index_path.string(), "", index.failure().message);
  const value* map = index->find("weight_map");
  if (!map || !map->is_object() || map->as_object().empty())
    fail_load(index_path.string(), "weight_map", "missing, empty or not an object");
  std::map<std::string, std::set<std::string>> shards; // file -> tensors
  for (const auto& [tensor, file] : map->as_object().entries()) {
    if (!file.is_string() || !is_plain_name(file.as_string())) fail_load(index_path.string(), tensor, "its file is not a plain file name");
    shards[file.as_string()].insert(tensor);
  }
  folder_tensors out;
  for (const auto& [file, tensors] : shards) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder / file, ignored)) {
      fail_load((folder / file).string(), "", std::string("the shard is missing, but ") + kIndexName + " names it");
    }
    add_file(out, folder / file, &tensors);
  }
  return out;
}

std::filesystem::path only_file(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") && !name.starts_with("consolidated")) found.push_back(entry.path());
  }
  if (failure) fail_load(folder.string(), "", "cannot list the folder: " + failure.message());
  if (found.empty()) fail_load(folder.string(), "", "no safetensors file (other weight formats are not read, GGUF apart)");
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    fail_load(folder.string(), "",
              "several safetensors files (" + printable(found[0].filename().string()) + ", " + printable(found[1].filename().string()) +
                  ", ..) but no " + kIndexName);
  }
  return found.front();
}

} // namespace

folder_tensors read_folder_tensors(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder / kSingleName, ignored) && std::filesystem::exists(folder / kIndexName, ignored))
    return read_indexed(folder);
  folder_tensors out;
  const bool single = std::filesystem::exists(folder / kSingleName, ignored);
  add_file(out, single ? folder / kSingleName : only_file(folder), nullptr);
  return out;
}

} // namespace troupe
