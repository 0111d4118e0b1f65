#include "kernels/cuda/algorithm_cache.hpp"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <system_error>

namespace troupe::gpu {
namespace {

constexpr const char* first_line = "troupe matmul algorithms 1: ";
constexpr std::uintmax_t most_bytes = 1 << 20; // a file of ours is far smaller

std::string checksum_line(const std::string& of) { // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : of) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  std::ostringstream out;
  out << "checksum " << std::hex << hash << '\n';
  return out.str();
}

} // namespace

algorithm_cache::algorithm_cache(std::filesystem::path file, std::string device, const log_line& log)
    : file_(std::move(file)), device_(std::move(device)) {
  std::error_code error;
  if (file_.empty() || !std::filesystem::exists(file_, error)) return;
  std::ostringstream text;
  if (std::filesystem::file_size(file_, error) <= most_bytes) text << std::ifstream(file_, std::ios::binary).rdbuf();
  if (auto found = parse(text.str())) {
    kept_ = std::move(*found);
  } else {
    log("matmul: " + file_.string() + " is damaged or of another device or version (wanted: " + device_ + "); measuring anew");
  }
}

std::optional<algorithm_cache::table> algorithm_cache::parse(const std::string& text) const {
  const std::size_t end = text.rfind("checksum ");
  if (end == std::string::npos || text.substr(end) != checksum_line(text.substr(0, end))) return std::nullopt;
  std::istringstream lines(text.substr(0, end));
  std::string line;
  if (!std::getline(lines, line) || line != first_line + device_) return std::nullopt;
  table out;
  while (std::getline(lines, line)) {
    std::istringstream in(line);
    product_key key;
    algorithm_words words{};
    in >> key.type >> key.y_type >> key.out_rows >> key.columns >> key.bias >> key.residual >> key.rows >> std::hex;
    for (std::uint64_t& word : words) in >> word;
    if (!in) return std::nullopt;
    out[key] = words;
  }
  return out;
}

std::string algorithm_cache::text() const {
  std::ostringstream out;
  out << first_line << device_ << '\n';
  for (const auto& [key, words] : kept_) {
    out << std::dec << key.type << ' ' << key.y_type << ' ' << key.out_rows << ' ' << key.columns << ' ' << key.bias << ' ' << key.residual
        << ' ' << key.rows << std::hex;
    for (const std::uint64_t word : words) out << ' ' << word;
    out << '\n';
  }
  return out.str();
}

const algorithm_words* algorithm_cache::kept(const product_key& key) const {
  const auto at = kept_.find(key);
  return at == kept_.end() ? nullptr : &at->second;
}

void algorithm_cache::choose(const product_key& key, const algorithm_words& words) {
  kept_[key] = used_[key] = words;
  changed_ = true;
}

const algorithm_words* algorithm_cache::at_least(const product_key& key) const {
  const auto same = [&key](product_key other) {
    other.rows = key.rows;
    return other == key;
  };
  auto at = used_.lower_bound(key);
  if (at != used_.end() && same(at->first)) return &at->second;
  if (at != used_.begin() && same((--at)->first)) return &at->second;
  return nullptr;
}

void algorithm_cache::save(const log_line& log) {
  if (!changed_ || file_.empty()) return;
  const std::filesystem::path fresh = file_.string() + "." + std::to_string(getpid());
  const std::string body = text();
  std::error_code error;
  if (file_.has_parent_path()) std::filesystem::create_directories(file_.parent_path(), error);
  std::ofstream out(fresh, std::ios::binary);
  out << body << checksum_line(body);
  out.close();
  if (out) std::filesystem::rename(fresh, file_, error);
  if (!out || error) {
    log("matmul: " + file_.string() + " could not be written" + (error ? ": " + error.message() : ""));
    std::filesystem::remove(fresh, error);
    return;
  }
  changed_ = false;
}

} // namespace troupe::gpu
