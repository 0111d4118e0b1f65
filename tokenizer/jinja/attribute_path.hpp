// The attribute paths that filters take ("a.b.0").
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tokenizer/jinja/machine.hpp"

namespace troupe::jinja {

// Parts between dots, of which those made of digits are integers. None is the item itself.
class attribute_path {
 public:
  attribute_path(machine& m, const cell& path) {
    if (path.is_none()) return;
    if (!path.is_text()) {
      parts_.push_back(path);
      return;
    }
    const std::string& text = path.bytes();
    m.charge(1 + text.size());
    for (std::size_t start = 0; start <= text.size();) {
      const std::size_t dot = std::min(text.find('.', start), text.size());
      const std::string part = text.substr(start, dot - start);
      const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
      parts_.push_back(number ? cell(std::int64_t{std::stol(part)}) : cell::literal(part));
      start = dot + 1;
    }
  }

  cell operator()(machine& m, cell item, const cell* fallback = nullptr) const {
    for (const cell& part : parts_) {
      item = get_item(m, item, part);
      if (fallback != nullptr && item.is_undefined()) item = *fallback;
    }
    return item;
  }

 private:
  std::vector<cell> parts_;
};

} // namespace troupe::jinja
