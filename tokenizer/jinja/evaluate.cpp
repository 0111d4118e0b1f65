// Expressions.
#include "tokenizer/jinja/interpreter.hpp"

namespace troupe::jinja {

namespace {

template <class... Cases>
struct overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
overloaded(Cases...) -> overloaded<Cases...>;

} // namespace

cell interpreter::evaluate(const expression& item) {
  machine_.charge();
  if (const auto* constant = std::get_if<constant_node>(&item.node)) return constant->value;
  if (const auto* name = std::get_if<name_node>(&item.node)) return evaluate_name(name->name);
  const machine::level deeper(machine_);
  return std::visit(overloaded{
                        [](const constant_node& n) { return n.value; },
                        [&](const name_node& n) { return evaluate_name(n.name); },
                        [&](const sequence_node& n) {
                          std::vector<cell> items;
                          for (const auto& i : n.items) items.push_back(evaluate(*i));
                          return make_sequence(n.kind, std::move(items));
                        },
                        [&](const dict_node& n) {
                          dict out;
                          for (const auto& [key, entry] : n.entries) {
                            cell k = evaluate(*key);
                            out.set(std::move(k), evaluate(*entry));
                          }
                          return make_dict(std::move(out));
                        },
                        [&](const sign_node& n) { return n.minus ? negative(evaluate(*n.operand)) : positive(evaluate(*n.operand)); },
                        [&](const not_node& n) { return cell(!evaluate(*n.operand).truthy()); },
                        [&](const logic_node& n) { return evaluate_logic(n); },
                        [&](const compare_node& n) { return cell(evaluate_compare(n)); },
                        [&](const arithmetic_node& n) {
                          cell out = evaluate(*n.first);
                          for (const auto& [op, operand] : n.rest) out = arithmetic(machine_, op, out, evaluate(*operand));
                          return out;
                        },
                        [&](const concat_node& n) {
                          std::string out;
                          for (const auto& i : n.items) machine_.append(out, to_string(machine_, evaluate(*i)));
                          return machine_.text(std::move(out));
                        },
                        [&](const condition_node& n) {
                          if (evaluate(*n.test).truthy()) return evaluate(*n.item);
                          return n.otherwise ? evaluate(*n.otherwise) : make_undefined("an inline if without else was false");
                        },
                        [&](const chain_node& n) { return evaluate_chain(n, nullptr); },
                    },
                    item.node);
}

cell interpreter::evaluate_name(name_id name) {
  if (const cell* found = scope_->find(name)) return *found;
  return make_undefined("'" + program_.names[name] + "' is undefined");
}

// The last operand that had to be looked at, as in Python.
cell interpreter::evaluate_logic(const logic_node& node) {
  cell out;
  for (const auto& operand : node.operands) {
    out = evaluate(*operand);
    if (out.truthy() == node.any) break;
  }
  return out;
}

bool interpreter::evaluate_compare(const compare_node& node) {
  cell left = evaluate(*node.first);
  for (const auto& [op, operand] : node.rest) {
    cell right = evaluate(*operand);
    if (!compare(machine_, op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

cell interpreter::evaluate_chain(const chain_node& node, const cell* caller) {
  cell out = evaluate(*node.base);
  for (std::size_t i = 0; i < node.steps.size(); ++i) out = apply(node.steps[i], out, i + 1 == node.steps.size() ? caller : nullptr);
  return out;
}

// `caller`: what a call block hands to the call.
cell interpreter::apply(const chain_step& step, const cell& base, const cell* caller) {
  machine_.charge();
  line_ = step.line;
  return std::visit(
      overloaded{
          [&](const attribute_step& s) { return get_attribute(machine_, base, s.name); },
          [&](const item_step& s) { return get_item(machine_, base, evaluate(*s.key)); },
          [&](const slice_step& s) {
            return slice(machine_, base, {evaluate_or_none(s.start), evaluate_or_none(s.stop), evaluate_or_none(s.step)});
          },
          [&](const call_step& s) {
            arguments args = evaluate_arguments(s.args);
            if (caller != nullptr) args.named.emplace_back("caller", *caller);
            line_ = step.line;
            return call(machine_, base, std::move(args));
          },
          [&](const filter_step& s) { return s.filter->run(machine_, base, evaluate_arguments(s.args)); },
          [&](const test_step& s) { return cell(s.test->run(machine_, base, evaluate_arguments(s.args)).truthy() != s.negated); },
      },
      step.what);
}

arguments interpreter::evaluate_arguments(const call_arguments& args) {
  arguments out;
  out.positional.reserve(args.positional.size());
  for (const auto& item : args.positional) out.positional.push_back(evaluate(*item));
  for (const auto& [name, item] : args.named) out.named.emplace_back(name, evaluate(*item));
  if (args.spread) {
    for (cell& item : items_of(machine_, evaluate(*args.spread))) out.positional.push_back(std::move(item));
  }
  if (args.spread_named) {
    const cell named = evaluate(*args.spread_named);
    if (!named.is_dict()) throw render_error("the argument behind ** must be a mapping");
    for (const auto& [name, item] : named.as_dict().entries()) {
      if (!name.is_text()) throw render_error("keywords must be strings");
      out.named.emplace_back(name.bytes(), item);
    }
  }
  return out;
}

} // namespace troupe::jinja
