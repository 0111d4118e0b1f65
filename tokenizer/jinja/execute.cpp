// Statements.
#include <algorithm>

#include "tokenizer/jinja/interpreter.hpp"
#include "tokenizer/jinja/objects.hpp"
#include "tokenizer/jinja/unicode.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe::jinja {

class interpreter::frame {
 public:
  frame(interpreter& owner, scope* parent) : owner_(owner), outer_(owner.scope_) { owner_.scope_ = owner_.scopes_.enter(parent); }
  ~frame() {
    owner_.scopes_.leave(owner_.scope_);
    owner_.scope_ = outer_;
  }
  frame(const frame&) = delete;
  frame& operator=(const frame&) = delete;

  // Forgets everything, for the next round of a loop.
  void renew() {
    scope* parent = owner_.scope_->parent;
    owner_.scopes_.leave(owner_.scope_);
    owner_.scope_ = owner_.scopes_.enter(parent);
  }

 private:
  interpreter& owner_;
  scope* outer_;
};

class interpreter::capture {
 public:
  explicit capture(interpreter& owner) : owner_(owner) { std::swap(owner_.out_, saved_); }
  ~capture() { std::swap(owner_.out_, saved_); }
  capture(const capture&) = delete;
  capture& operator=(const capture&) = delete;
  std::string take() { return std::move(owner_.out_); }

 private:
  interpreter& owner_;
  std::string saved_;
};

// A macro, or the body of a call block.
class macro_object : public object {
 public:
  macro_object(interpreter& owner, std::shared_ptr<const callable_body> body, scope* closure)
      : owner_(owner), body_(std::move(body)), closure_(closure) {}
  std::string_view type_name() const override { return "Macro"; }
  std::optional<cell> attribute(machine&, std::string_view name) override {
    return name == "name" ? std::optional(cell::literal(body_->name)) : std::nullopt;
  }
  bool callable() const override { return true; }
  cell call(machine&, arguments args) override { return owner_.call_macro(*body_, closure_, std::move(args)); }
  std::string repr(machine&, std::size_t) override { return "<Macro '" + body_->name + "'>"; }

 private:
  interpreter& owner_;
  std::shared_ptr<const callable_body> body_;
  scope* closure_;
};

std::string interpreter::run(const value_object& variables) {
  const frame root(*this, nullptr);
  for (name_id id = 0; id < program_.names.size(); ++id) {
    const std::string& name = program_.names[id];
    if (const value* given = variables.find(name)) {
      scope_->set(id, to_cell(machine_, *given));
    } else if (const builtin* global = find_global(name)) {
      scope_->set(id, std::make_shared<const method>(method{{}, global}));
    }
    if (name == "loop") loop_ = id;
    if (name == "varargs") varargs_ = id;
    if (name == "kwargs") kwargs_ = id;
    if (name == "caller") caller_ = id;
  }
  execute(program_.body);
  return std::move(out_);
}

jump interpreter::execute(const block& body) {
  const machine::level deeper(machine_);
  for (const statement& item : body) {
    if (const jump where = execute(item); where != jump::none) return where;
  }
  return jump::none;
}

jump interpreter::execute(const statement& item) {
  machine_.charge();
  line_ = item.line;
  return std::visit([this](const auto& node) { return run(node); }, item.node);
}

jump interpreter::run(const text_statement& node) {
  machine_.append(out_, node.text);
  return jump::none;
}

jump interpreter::run(const print_statement& node) {
  const cell printed = evaluate(*node.item);
  printed.is_text() ? machine_.append(out_, printed.bytes()) : machine_.append(out_, to_string(machine_, printed));
  return jump::none;
}

jump interpreter::run(const if_statement& node) {
  for (const auto& [test, body] : node.branches) {
    if (evaluate(*test).truthy()) return execute(body);
  }
  return execute(node.otherwise);
}

jump interpreter::run(const set_statement& node) {
  assign(node.place, evaluate(*node.item));
  return jump::none;
}

jump interpreter::run(const set_block_statement& node) {
  cell made;
  const jump where = run_captured(node.body, node.filters, made);
  if (where == jump::none) assign(node.place, std::move(made));
  return where;
}

jump interpreter::run(const filter_statement& node) {
  cell made;
  const jump where = run_captured(node.body, node.filters, made);
  if (where == jump::none) machine_.append(out_, to_string(machine_, made));
  return where;
}

jump interpreter::run(const scope_statement& node) {
  const frame inner(*this, scope_);
  return execute(node.body);
}

jump interpreter::run_captured(const block& body, const std::vector<chain_step>& filters, cell& out) {
  const frame inner(*this, scope_);
  capture captured(*this);
  if (const jump where = execute(body); where != jump::none) return where;
  out = machine_.text(captured.take());
  for (const chain_step& filter : filters) out = apply(filter, out, nullptr);
  return jump::none;
}

// The items that pass the loop's own condition.
std::vector<cell> interpreter::rows_of(const for_statement& node) {
  std::vector<cell> rows = items_of(machine_, evaluate(*node.rows));
  if (!node.condition) return rows;
  std::vector<cell> kept;
  frame inner(*this, scope_);
  for (cell& row : rows) {
    inner.renew();
    assign(node.item, row);
    if (evaluate(*node.condition).truthy()) kept.push_back(std::move(row));
  }
  return kept;
}

jump interpreter::run(const for_statement& node) {
  std::vector<cell> rows = rows_of(node);
  frame inner(*this, scope_);
  bool completed = false; // some round came to its end; else is for when none did, also because of a jump (as in Jinja2)
  loop_object* loop = loop_ && !rows.empty() ? machine_.make<loop_object>(rows, 1) : nullptr;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    machine_.charge();
    inner.renew();
    if (loop != nullptr) {
      loop->move_to(i);
      scope_->set(*loop_, cell(static_cast<object*>(loop)));
    }
    assign(node.item, std::move(rows[i]));
    const jump where = execute(node.body);
    if (where == jump::leave) break;
    completed = completed || where == jump::none;
  }
  if (completed || node.otherwise.empty()) return jump::none;
  inner.renew();
  return execute(node.otherwise);
}

jump interpreter::run(const with_statement& node) {
  std::vector<cell> items;
  for (const auto& variable : node.variables) items.push_back(evaluate(*variable.second));
  const frame inner(*this, scope_);
  for (std::size_t i = 0; i < items.size(); ++i) assign(node.variables[i].first, std::move(items[i]));
  return execute(node.body);
}

jump interpreter::run(const macro_statement& node) {
  scope_pool::capture(scope_);
  scope_->set(node.name, cell(static_cast<object*>(machine_.make<macro_object>(*this, node.macro, scope_))));
  return jump::none;
}

jump interpreter::run(const call_statement& node) {
  scope_pool::capture(scope_);
  const cell caller(static_cast<object*>(machine_.make<macro_object>(*this, node.caller, scope_)));
  const cell made = evaluate_chain(std::get<chain_node>(node.call->node), &caller);
  machine_.append(out_, to_string(machine_, made));
  return jump::none;
}

cell interpreter::call_macro(const callable_body& body, scope* closure, arguments args) {
  const machine::level deeper(machine_);
  const frame inner(*this, closure);
  bind_parameters(body, args);
  capture captured(*this);
  execute(body.body);
  return machine_.text(captured.take());
}

// Puts the arguments of a macro's call into its scope; uses `args` up.
void interpreter::bind_parameters(const callable_body& body, arguments& args) {
  auto take_named = [&](const std::string& name) -> std::optional<cell> {
    auto it = std::find_if(args.named.begin(), args.named.end(), [&](const auto& n) { return n.first == name; });
    if (it == args.named.end()) return std::nullopt;
    cell out = std::move(it->second);
    args.named.erase(it);
    return out;
  };
  const std::size_t count = std::min(body.parameters.size(), args.positional.size());
  std::vector<const parameter*> missing;
  bool explicit_caller = false;
  for (std::size_t i = 0; i < body.parameters.size(); ++i) {
    const parameter& p = body.parameters[i];
    const std::string& name = program_.names[p.name];
    explicit_caller = explicit_caller || name == "caller";
    if (i < count) {
      scope_->set(p.name, std::move(args.positional[i]));
    } else if (auto given = take_named(name)) {
      scope_->set(p.name, std::move(*given));
    } else {
      missing.push_back(&p);
    }
  }
  for (const parameter* p : missing) {
    scope_->set(p->name,
                p->fallback ? evaluate(*p->fallback) : make_undefined("parameter '" + program_.names[p->name] + "' was not provided"));
  }
  if (body.takes_caller && !explicit_caller) {
    scope_->set(*caller_, take_named("caller").value_or(make_undefined("No caller defined")));
  }
  if (body.takes_kwargs) {
    dict named;
    for (auto& [name, item] : args.named) named.set(machine_.text(name), std::move(item));
    scope_->set(*kwargs_, make_dict(std::move(named)));
  } else if (!args.named.empty()) {
    throw render_error("macro '" + body.name + "' takes no keyword argument '" + args.named.front().first + "'");
  }
  if (body.takes_varargs) {
    scope_->set(*varargs_, make_tuple({args.positional.begin() + static_cast<std::ptrdiff_t>(count), args.positional.end()}));
  } else if (args.positional.size() > count) {
    throw render_error("macro '" + body.name + "' takes at most " + std::to_string(count) + " arguments");
  }
}

void interpreter::assign(const target& place, cell item) {
  if (place.row) {
    std::vector<cell> parts = items_of(machine_, item);
    if (parts.size() != place.parts.size()) {
      throw render_error("cannot unpack " + std::to_string(parts.size()) + " values into " + std::to_string(place.parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign(place.parts[i], std::move(parts[i]));
  } else if (place.attribute) {
    const cell* held = scope_->find(place.name);
    auto* space = held != nullptr && held->is_object() ? dynamic_cast<namespace_object*>(held->as_object()) : nullptr;
    if (space == nullptr) throw render_error("cannot assign attribute on non-namespace object");
    space->set(machine_, *place.attribute, std::move(item));
  } else {
    scope_->set(place.name, std::move(item));
  }
}

namespace {

cell given_text(machine& m, const std::string& bytes) { return m.text(utf8::is_valid(bytes) ? bytes : utf8::repair(bytes)); }

} // namespace

cell to_cell(machine& m, const value& item) {
  const machine::level deeper(m);
  if (item.is_bool()) return item.as_bool();
  if (item.is_int()) return item.as_int();
  if (item.is_double()) return item.as_double();
  if (item.is_string()) return given_text(m, item.as_string());
  if (item.is_array()) {
    std::vector<cell> items;
    items.reserve(item.as_array().size());
    for (const value& i : item.as_array()) items.push_back(to_cell(m, i));
    return make_list(std::move(items));
  }
  if (item.is_object()) {
    dict out;
    for (const auto& [key, member] : item.as_object().entries()) out.set(given_text(m, key), to_cell(m, member));
    return make_dict(std::move(out));
  }
  return {};
}

} // namespace troupe::jinja
