#include "tokenizer/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>

#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

constexpr std::size_t short_word = 32; // symbols; up to here scanning for the lowest rank beats a heap

struct heap_entry {
  std::uint32_t rank;
  std::uint32_t position; // of the left symbol
  token_id merged;

  friend bool operator>(const heap_entry& a, const heap_entry& b) { return a.rank != b.rank ? a.rank > b.rank : a.position > b.position; }
};

struct link {
  std::uint32_t previous;
  std::uint32_t next;
};

} // namespace

struct bpe_model::workspace {
  std::vector<token_id> symbols;
  std::vector<merge_table::rule> rules;
  std::vector<link> links;
  std::vector<heap_entry> heap;
};

std::shared_ptr<bpe_model::workspace> bpe_model::make_workspace() { return std::make_shared<workspace>(); }

merge_table::merge_table(const std::vector<merge_rule>& merges) : slots_(std::bit_ceil(merges.size() * 2 + 16)) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const merge_rule& item = merges[rank];
    const std::uint64_t key =
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(item.left)) << 32 | static_cast<std::uint32_t>(item.right);
    std::size_t at = hash_of(key) & mask;
    while (slots_[at].key != no_key && slots_[at].key != key) at = (at + 1) & mask;
    slots_[at] = {key, {static_cast<std::uint32_t>(rank), item.merged}};
  }
}

std::size_t merge_table::hash_of(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15ULL; // Fibonacci hashing: the golden ratio's bits
  return static_cast<std::size_t>(key ^ key >> 29);
}

merge_table::rule merge_table::find(token_id left, token_id right) const {
  const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash_of(key) & mask; slots_[at].key != no_key; at = (at + 1) & mask) {
    if (slots_[at].key == key) return slots_[at].value;
  }
  return {};
}

bpe_model::bpe_model(const text_index& index, const std::vector<merge_rule>& merges, const bpe_options& options)
    : index_(index), merges_(merges), options_(options) {
  static constexpr char digits[] = "0123456789ABCDEF";
  for (unsigned b = 0; b < 256; ++b) {
    const char raw = static_cast<char>(b);
    const std::string spelled = {'<', '0', 'x', digits[b >> 4], digits[b & 15], '>'};
    byte_ids_[b] = (options.bytes ? index.find({&raw, 1}) : index.find(spelled)).value_or(none);
    if (b < 128) ascii_ids_[b] = index.find({&raw, 1}).value_or(none);
  }
}

bool bpe_model::push_fallback(std::string_view character, std::vector<token_id>& symbols) const {
  for (const char b : character) {
    if (byte_ids_[static_cast<unsigned char>(b)] == none) return false;
  }
  for (const char b : character) symbols.push_back(byte_ids_[static_cast<unsigned char>(b)]);
  return true;
}

// An unknown run's token is held back until a known character (not a byte token) or the end: that is where Hugging Face puts it.
void bpe_model::first_symbols(std::string_view word, std::vector<token_id>& symbols) const {
  symbols.clear();
  bool pending = false;
  const auto flush = [&] {
    if (pending) symbols.push_back(*options_.unk);
    pending = false;
  };
  for (std::size_t at = 0; at < word.size();) {
    const auto lead = static_cast<unsigned char>(word[at]);
    const std::size_t size = options_.bytes || lead < 0x80 ? 1 : utf8::read_valid(word, at).size;
    const std::string_view character = word.substr(at, size);
    at += size;
    token_id id = none;
    if (options_.bytes) {
      id = byte_ids_[lead];
    } else {
      id = size == 1 ? ascii_ids_[lead] : index_.find(character).value_or(none);
    }
    if (id != none) {
      flush();
      symbols.push_back(id);
    } else if (options_.byte_fallback && !options_.bytes && push_fallback(character, symbols)) {
      continue;
    } else if (options_.unk) {
      if (!options_.fuse_unk) flush();
      pending = true;
    }
  }
  flush();
}

void bpe_model::merge_short(std::vector<token_id>& symbols, workspace& work) const {
  auto& rules = work.rules; // rules[i]: of symbols i and i + 1
  rules.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) rules.push_back(merges_.find(symbols[i], symbols[i + 1]));
  while (!rules.empty()) {
    const auto best = std::min_element(rules.begin(), rules.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == merge_table::no_rank) return;
    const auto i = static_cast<std::size_t>(best - rules.begin());
    symbols[i] = best->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    rules.erase(best);
    if (i < rules.size()) rules[i] = merges_.find(symbols[i], symbols[i + 1]);
    if (i > 0) rules[i - 1] = merges_.find(symbols[i - 1], symbols[i]);
  }
}

// A heap of possible merges and a linked list of symbols. An entry is stale when its pair is no longer there: then the pair at its
// place merges into something else, or does not merge.
void bpe_model::merge_long(std::vector<token_id>& symbols, workspace& work) const {
  const auto count = static_cast<std::uint32_t>(symbols.size());
  auto& links = work.links;
  auto& heap = work.heap;
  links.clear();
  heap.clear();
  for (std::uint32_t i = 0; i < count; ++i) links.push_back({i == 0 ? count : i - 1, i + 1});
  const auto offer = [&](std::uint32_t left, std::uint32_t right) {
    const auto rule = merges_.find(symbols[left], symbols[right]);
    if (rule.rank != merge_table::no_rank) heap.push_back({rule.rank, left, rule.merged});
    return rule.rank != merge_table::no_rank;
  };
  for (std::uint32_t i = 0; i + 1 < count; ++i) offer(i, i + 1);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto offer_later = [&](std::uint32_t left, std::uint32_t right) {
    if (offer(left, right)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const heap_entry top = heap.back();
    heap.pop_back();
    const std::uint32_t left = top.position;
    if (symbols[left] == none) continue;
    const std::uint32_t right = links[left].next;
    if (right == count) continue;
    const auto rule = merges_.find(symbols[left], symbols[right]);
    if (rule.rank != top.rank || rule.merged != top.merged) continue;
    symbols[left] = top.merged;
    symbols[right] = none;
    const std::uint32_t after = links[right].next;
    links[left].next = after;
    if (after != count) {
      links[after].previous = left;
      offer_later(left, after);
    }
    if (links[left].previous != count) offer_later(links[left].previous, left);
  }
  std::erase(symbols, none);
}

void bpe_model::encode(std::string_view word, workspace& work, std::vector<token_id>& out) const {
  if (options_.ignore_merges) {
    if (const auto whole = index_.find(word)) {
      out.push_back(*whole);
      return;
    }
  }
  auto& symbols = work.symbols;
  first_symbols(word, symbols);
  if (symbols.size() <= short_word) {
    merge_short(symbols, work);
  } else {
    merge_long(symbols, work);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
}

} // namespace troupe
