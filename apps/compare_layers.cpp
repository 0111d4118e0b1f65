#include "apps/compare_layers.hpp"

#include <cstdio>

#include "apps/device_choice.hpp"
#include "apps/engine.hpp"
#include "core/error.hpp"

#ifdef TROUPE_HAVE_CUDA
#include "device/cpu/host_limits.hpp"
#include "models/gpu_layer_states.hpp"
#include "models/widened_weights.hpp"
#endif

namespace troupe::apps {

#ifdef TROUPE_HAVE_CUDA

namespace {

// Both sides of the comparison.
struct two_sides {
  layer_states tested, reference;
};

two_sides run_both(const model_weights& weights, const gpu_executor_options& options, const std::vector<token_id>& tokens,
                   const std::string& what) {
  const gpu_executor_options plain = reference(options);
  const auto plainly = [&] { return gpu_layer_states(weights, plain, tokens, token_feed::at_once); };
  if (what == "prefill") return {gpu_layer_states(weights, options, tokens, token_feed::at_once), plainly()};
  if (what == "fused") return {gpu_layer_states(weights, options, tokens, token_feed::one_by_one), plainly()};
  const auto floats = std::make_shared<const model_weights>(widened(weights, static_cast<std::int32_t>(cpu::usable_cores())));
  return {plainly(), cpu_layer_states(floats, tokens)};
}

void print(const layer_comparison& found, double unit, const std::vector<token_id>& tokens) {
  std::printf("layer   token   distance   allowed\n");
  for (const layer_parting& worst : found.worst) {
    std::printf("%5d   %5d   %8.5f   %7.5f\n", worst.layer, worst.token, worst.distance, rounding_tolerance(worst.layer, unit));
  }
  if (!found.first_parted) {
    std::printf("no layer of %zu parts by more than rounding, over %zu tokens\n", found.worst.size(), tokens.size());
    return;
  }
  const layer_parting& first = *found.first_parted;
  std::printf("the two part first behind layer %d at token %d (id %d): %.5f of the hidden state's length, rounding explains %.5f\n",
              first.layer, first.token, tokens[static_cast<std::size_t>(first.token)], first.distance,
              rounding_tolerance(first.layer, unit));
}

} // namespace

int compare_layers(const engine_options& o, const std::string& prompt, const std::string& what) {
  const auto source = open_source(o);
  const device_choice device = choose_device(o, source->config());
  if (!device.gpu) throw load_error("--compare-layers compares a GPU's paths: " + device.reason);
  const text_side text = load_text_side(*source);
  const std::vector<token_id> tokens = text.tokens->encode(prompt);
  const model_weights weights = o.load_format == "dummy" ? make_dummy_weights(source->config(), dtype::bf16, 1) : source->load();
  const gpu_executor_options options = gpu_options(*device.gpu, o, text.tokens->vocab_size());
  const double unit = gpu_type(weights, options) == dtype::f16 ? 0x1p-11 : 0x1p-8;
  const two_sides sides = run_both(weights, options, tokens, what);
  const layer_comparison found = compare_layers(sides.tested, sides.reference, unit);
  print(found, unit, tokens);
  return found.first_parted ? 1 : 0;
}

#else

int compare_layers(const engine_options&, const std::string&, const std::string&) {
  throw load_error("--compare-layers compares a GPU's paths: this program was built without CUDA");
}

#endif

} // namespace troupe::apps
