#include "apps/bench/sse_parser.hpp"

namespace troupe::bench {

bool sse_parser::feed(std::string_view bytes) {
  while (!bytes.empty() && !overflow_) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const auto end = bytes.find_first_of("\r\n");
    const auto part = bytes.substr(0, end);
    if (line_.size() + data_.size() + part.size() > max_event_bytes_) {
      overflow_ = true;
      break;
    }
    line_ += part;
    if (end == std::string_view::npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line();
  }
  return !overflow_;
}

void sse_parser::end_line() {
  std::string_view line = line_;
  if (at_start_ && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  at_start_ = false;
  if (line.empty()) {
    if (has_data_) on_event_(data_);
    data_.clear();
    has_data_ = false;
  } else if (line.starts_with("data") && (line.size() == 4 || line[4] == ':')) {
    auto text = line.substr(line.size() == 4 ? 4 : 5);
    if (text.starts_with(' ')) text.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += text;
    has_data_ = true;
  } // comments and other fields carry nothing for us
  line_.clear();
}

} // namespace troupe::bench
