// Variables in sight at a place of a template.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.hpp"

namespace troupe::jinja {

struct scope {
  scope* parent = nullptr;
  bool captured = false; // a macro was made here and may outlive the block
  std::vector<std::pair<name_id, cell>> variables;

  void set(name_id name, cell item) {
    auto it = std::find_if(variables.begin(), variables.end(), [&](const auto& v) { return v.first == name; });
    it == variables.end() ? void(variables.emplace_back(name, std::move(item))) : void(it->second = std::move(item));
  }
  const cell* find(name_id name) const {
    for (const scope* at = this; at != nullptr; at = at->parent) {
      for (const auto& [id, item] : at->variables) {
        if (id == name) return &item;
      }
    }
    return nullptr;
  }
};

// Scopes come and go like a stack, except those that macros hold on to: they live until the end.
class scope_pool {
 public:
  scope* enter(scope* parent) {
    if (free_.empty()) {
      all_.push_back(std::make_unique<scope>());
      free_.push_back(all_.back().get());
    }
    scope* out = free_.back();
    free_.pop_back();
    out->parent = parent;
    return out;
  }
  void leave(scope* done) {
    if (done->captured) return;
    done->variables.clear();
    free_.push_back(done);
  }
  static void capture(scope* at) {
    for (; at != nullptr && !at->captured; at = at->parent) at->captured = true;
  }

 private:
  std::vector<std::unique_ptr<scope>> all_;
  std::vector<scope*> free_;
};

} // namespace troupe::jinja
