// The functions that every template can call.
#include <algorithm>
#include <array>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/objects.hpp"
#include "tokenizer/jinja/parameters.hpp"

namespace troupe::jinja {

namespace {

constexpr std::int64_t kMaxRange = 100'000; // items, as in Jinja2's sandbox

cell range_function(machine& m, const cell&, const arguments& args) {
  if (!args.named.empty()) throw render_error("range takes no named arguments");
  const parameters p("range", args, {"start", "stop", "step"}, 1);
  auto made = std::make_shared<sequence>();
  made->kind = sequence_kind::range;
  made->start = p.given(1) ? p.integer(0, 0) : 0;
  made->stop = p.integer(p.given(1) ? 1 : 0, 0);
  made->step = p.integer(2, 1);
  if (made->step == 0) throw render_error("range: the step must not be zero");
  const __int128 distance =
      made->step > 0 ? static_cast<__int128>(made->stop) - made->start : static_cast<__int128>(made->start) - made->stop;
  const __int128 stride = made->step > 0 ? static_cast<__int128>(made->step) : -static_cast<__int128>(made->step);
  const __int128 count = distance > 0 ? (distance - 1) / stride + 1 : 0;
  if (count > kMaxRange) throw render_error("range is limited to " + std::to_string(kMaxRange) + " items");
  m.charge(1 + static_cast<std::size_t>(count));
  made->items.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i)
    made->items.emplace_back(static_cast<std::int64_t>(made->start + i * static_cast<__int128>(made->step)));
  return cell::sequence_ptr(std::move(made));
}

// dict(mapping or pairs, **named)
dict dict_from(machine& m, const arguments& args) {
  if (args.positional.size() > 1) throw render_error("dict takes at most one argument without a name");
  dict out;
  if (!args.positional.empty() && args.positional[0].is_undefined()) fail_undefined(args.positional[0]);
  if (!args.positional.empty() && args.positional[0].is_dict()) {
    m.charge(args.positional[0].as_dict().size());
    out = args.positional[0].as_dict();
  } else if (!args.positional.empty()) {
    for (const cell& pair : items_of(m, args.positional[0])) {
      std::vector<cell> parts = items_of(m, pair);
      if (parts.size() != 2) throw render_error("dict needs pairs");
      out.set(std::move(parts[0]), std::move(parts[1]));
    }
  }
  for (const auto& [name, item] : args.named) out.set(m.text(name), item);
  return out;
}

cell dict_function(machine& m, const cell&, const arguments& args) { return make_dict(dict_from(m, args)); }

cell namespace_function(machine& m, const cell&, const arguments& args) {
  auto* made = m.make<namespace_object>();
  const dict attributes = dict_from(m, args);
  for (const auto& [name, item] : attributes.entries()) {
    if (!name.is_text()) throw render_error("names of a namespace's attributes must be strings");
    made->set(m, name.bytes(), item);
  }
  return cell(static_cast<object*>(made));
}

cell raise_function(machine& m, const cell&, const arguments& args) {
  const parameters p("raise_exception", args, {"message"}, 1);
  throw raised_error(to_string(m, p.at(0)));
}

cell strftime_function(machine& m, const cell&, const arguments& args) {
  const parameters p("strftime_now", args, {"format"}, 1);
  m.charge_bytes(p.string(0).size() * 64);
  return m.text(format_time(p.string(0), m.now()));
}

class joiner_object : public object {
 public:
  explicit joiner_object(cell separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  std::optional<cell> attribute(machine&, std::string_view name) override {
    return name == "sep" ? std::optional(separator_) : name == "used" ? std::optional(cell(used_)) : std::nullopt;
  }
  bool callable() const override { return true; }
  cell call(machine&, arguments args) override {
    const parameters none("joiner", args, {});
    return std::exchange(used_, true) ? separator_ : cell::literal("");
  }

 private:
  cell separator_;
  bool used_ = false;
};

class cycler_object : public object {
 public:
  explicit cycler_object(std::vector<cell> items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  std::optional<cell> attribute(machine&, std::string_view name) override {
    static constexpr builtin next = {"next", [](machine&, const cell& self, const arguments& args) {
                                       const parameters none("next", args, {});
                                       return dynamic_cast<cycler_object*>(self.as_object())->next();
                                     }};
    static constexpr builtin reset = {"reset", [](machine&, const cell& self, const arguments& args) {
                                        const parameters none("reset", args, {});
                                        dynamic_cast<cycler_object*>(self.as_object())->at_ = 0;
                                        return cell();
                                      }};
    if (name == "current") return items_[at_];
    if (name == "next" || name == "reset")
      return std::make_shared<const method>(method{cell(static_cast<object*>(this)), name == "next" ? &next : &reset});
    return std::nullopt;
  }

 private:
  cell next() {
    cell out = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return out;
  }
  std::vector<cell> items_;
  std::size_t at_ = 0;
};

cell joiner_function(machine& m, const cell&, const arguments& args) {
  const parameters p("joiner", args, {"sep"});
  return cell(static_cast<object*>(m.make<joiner_object>(p.get(0, cell::literal(", ")))));
}

cell cycler_function(machine& m, const cell&, const arguments& args) {
  if (!args.named.empty() || args.positional.empty()) throw render_error("cycler needs values");
  return cell(static_cast<object*>(m.make<cycler_object>(args.positional)));
}

constexpr std::array<builtin, 7> globals = {{
    {"cycler", cycler_function},
    {"dict", dict_function},
    {"joiner", joiner_function},
    {"namespace", namespace_function},
    {"raise_exception", raise_function},
    {"range", range_function},
    {"strftime_now", strftime_function},
}};

} // namespace

const builtin* find_global(std::string_view name) {
  auto it = std::find_if(globals.begin(), globals.end(), [&](const builtin& b) { return b.name == name; });
  return it == globals.end() ? nullptr : &*it;
}

} // namespace troupe::jinja
