// Encodes and decodes JSON lines with a checkpoint's tokenizer, for comparison with other implementations.
//   tokenize MODEL            lines {"text": .., "add": bool, "parse": bool} -> [ids]; {"ids": [..], "skip": bool} -> {"whole": ..,
//   "streamed": ..} tokenize MODEL --time F   seconds to load, and to encode the file F
// MODEL: a Hugging Face folder, a tokenizer.json, a SentencePiece .model, or a .gguf file.
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>

#include "core/json.hpp"
#include "models/gguf.hpp"
#include "tokenizer/detokenizer.hpp"
#include "tokenizer/tokenizer.hpp"

namespace {

using namespace troupe;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw load_error(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

value parse(const std::string& text) {
  auto parsed = json::parse(text);
  if (!parsed) throw load_error(parsed.failure().message);
  return std::move(*parsed);
}

std::shared_ptr<const tokenizer> open(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return load_tokenizer(path);
  const std::string bytes = read_file(path);
  if (path.extension() == ".json") return tokenizer_from_json(parse(bytes), value(value_object{}), path.string());
  if (path.extension() == ".gguf") {
    const auto file = parse_gguf(std::as_bytes(std::span(bytes)), path.string());
    return tokenizer_from_gguf(file.metadata, path.string());
  }
  return tokenizer_from_sentencepiece(bytes, value(value_object{}), path.string());
}

bool flag(const value& line, std::string_view key, bool fallback) {
  const value* found = line.find(key);
  return found == nullptr ? fallback : found->as_bool();
}

value answer(const std::shared_ptr<const tokenizer>& tokens, const value& line) {
  if (const value* text = line.find("text")) {
    value_array ids;
    for (const token_id id : tokens->encode(text->as_string(), {flag(line, "add", true), flag(line, "parse", true)})) ids.emplace_back(id);
    return ids;
  }
  std::vector<token_id> ids;
  for (const value& id : line.find("ids")->as_array()) ids.push_back(static_cast<token_id>(id.as_int()));
  const bool skip = flag(line, "skip", true);
  incremental_detokenizer stream(tokens, {}, skip);
  std::string streamed;
  for (const token_id id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  value_object out;
  out.set("whole", tokens->decode(ids, skip));
  out.set("streamed", streamed);
  return out;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw load_error("usage: tokenize MODEL [--time FILE]");
    auto start = std::chrono::steady_clock::now();
    const auto tokens = open(argv[1]);
    if (argc == 4) {
      std::cout << "load " << seconds_since(start) << " s\n";
      const std::string text = read_file(argv[3]);
      start = std::chrono::steady_clock::now();
      const auto ids = tokens->encode(text);
      std::cout << "encode " << text.size() << " bytes to " << ids.size() << " tokens: " << seconds_since(start) << " s\n";
      return 0;
    }
    for (std::string line; std::getline(std::cin, line);) std::cout << json::dump(answer(tokens, parse(line))) << '\n';
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << '\n';
    return 1;
  }
  return 0;
}
