#include "apps/compare_layers.hpp"

#include <cstdio>

#include "apps/device_choice.hpp"
#include "apps/model_source.hpp"
#include "core/error.hpp"

#ifdef TROUPE_HAVE_CUDA
#include "device/cpu/host_limits.hpp"
#include "models/gpu_layer_states.hpp"
#include "models/widened_weights.hpp"
#endif

namespace troupe::apps {

#ifdef TROUPE_HAVE_CUDA

namespace {

constexpr std::uint32_t probe_count = 8;

// Both sides of the comparison, and what rounding may do to the plain path.
struct two_sides {
  layer_states tested, reference;
  rounding_bounds bounds;
};

two_sides run_both(const model_weights& weights, const gpu_executor_options& options, double unit, const std::vector<token_id>& tokens,
                   const std::string& what) {
  const auto threads = static_cast<std::int32_t>(cpu::usable_cores());
  const gpu_executor_options plain = reference(options);
  const auto plainly = [&](const model_weights& w) { return gpu_layer_states(w, plain, tokens, token_feed::at_once); };
  layer_states right = plainly(weights);
  std::vector<layer_states> probes;
  for (std::uint32_t seed = 1; seed <= probe_count; ++seed) probes.push_back(plainly(jittered(weights, unit, seed, threads)));
  const rounding_bounds bounds = measured_bounds(right, probes);
  if (what == "prefill") return {gpu_layer_states(weights, options, tokens, token_feed::at_once), std::move(right), bounds};
  if (what == "fused") return {gpu_layer_states(weights, options, tokens, token_feed::one_by_one), std::move(right), bounds};
  return {std::move(right), cpu_layer_states(std::make_shared<const model_weights>(widened(weights, threads)), tokens), bounds};
}

void print(const layer_comparison& found, const rounding_bounds& bounds, const std::vector<token_id>& tokens) {
  std::printf("layer   token   distance   allowed\n");
  for (const layer_parting& worst : found.worst) {
    std::printf("%5d   %5d   %8.5f   %7.5f\n", worst.layer, worst.token, worst.distance, bounds.at(worst.layer, worst.token));
  }
  if (!found.first_parted) {
    std::printf("no layer of %zu parts by more than rounding, over %zu tokens\n", found.worst.size(), tokens.size());
    return;
  }
  const layer_parting& first = *found.first_parted;
  std::printf("the two part first behind layer %d at token %d (id %d): %.5f of the hidden state's length, rounding explains %.5f\n",
              first.layer, first.token, tokens[static_cast<std::size_t>(first.token)], first.distance, bounds.at(first.layer, first.token));
}

} // namespace

int compare_layers(const engine_options& o, const std::string& prompt, const std::string& what) {
  const auto source = open_source(o);
  const device_choice device = choose_device(o, source->config());
  if (!device.gpu) throw load_error("--compare-layers compares a GPU's paths: " + device.reason);
  const text_side text = load_text_side(*source);
  const std::vector<token_id> tokens = text.tokens->encode(prompt);
  const model_weights weights = o.load_format == "dummy" ? make_dummy_weights(source->config(), dtype::bf16, 1) : source->load();
  gpu_executor_options options = gpu_options(*device.gpu, o, text.tokens->vocab_size());
  options.type = gpu_type(weights, options); // of the probes too, whose weights are floats
  const two_sides sides = run_both(weights, options, options.type == dtype::f16 ? 0x1p-11 : 0x1p-8, tokens, what);
  const layer_comparison found = compare_layers(sides.tested, sides.reference, sides.bounds);
  print(found, sides.bounds, tokens);
  return found.first_parted ? 1 : 0;
}

#else

int compare_layers(const engine_options&, const std::string&, const std::string&) {
  throw load_error("--compare-layers compares a GPU's paths: this program was built without CUDA");
}

#endif

} // namespace troupe::apps
